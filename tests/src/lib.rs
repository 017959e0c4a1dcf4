//! Shared code of the cross-crate tests: the device under test, random forests, the fixtures of
//! reference models, packed and separate steps, and references in plain loops.

pub mod attention;
pub mod device;
pub mod equality;
pub mod fixture;
pub mod forest;
pub mod gated_delta_rule;
pub mod logits;
pub mod models;
pub mod numbers;
pub mod oracle;
pub mod packing;
pub mod partition;
pub mod policy;
pub mod small_gpt;
pub mod step;
pub mod tensors;

/// The README's example compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// The example of the page on objectives compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/objectives.md")]
pub struct ObjectivesPage;

/// The examples of the page on adapting a model compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/how-to/own-model.md")]
pub struct OwnModelPage;

/// The examples in the READMEs of the crates compile and run.
#[cfg(doctest)]
pub mod readmes {
    #[doc = include_str!("../../tree-pack/README.md")]
    pub struct TreePack;
    #[doc = include_str!("../../burn-tree-kit/README.md")]
    pub struct Kit;
    #[doc = include_str!("../../burn-tree-attn/README.md")]
    pub struct Attn;
    #[doc = include_str!("../../burn-tree-ssm/README.md")]
    pub struct Ssm;
    #[doc = include_str!("../../burn-tree-nn/README.md")]
    pub struct Nn;
    #[doc = include_str!("../../burn-tree-train/README.md")]
    pub struct Train;
    #[doc = include_str!("../../burn-tree-models/README.md")]
    pub struct Models;
    #[doc = include_str!("../../devices/README.md")]
    pub struct Devices;
}

/// The set-up that later examples of that page use.
pub mod own_model {
    use burn::module::Module;
    use burn::tensor::Device;
    use burn_tree_train::{StepOptions, TreeModel, sft_loss, step_gradients};
    use tree_pack::{PackOptions, Partitioning, Trajectory, build_forests, pack_step};

    pub use crate::small_gpt::SmallGpt as Gpt;

    /// Three trajectories of two tasks, a device with autodiff, and a fresh model.
    pub fn set_up() -> (Vec<Trajectory>, Device, Gpt) {
        let trajectories = [
            ("a", [1, 2, 3, 4]),
            ("a", [1, 2, 3, 5]),
            ("b", [1, 2, 6, 7]),
        ]
        .map(|(task, tokens)| Trajectory::new(task, "run", tokens.to_vec(), vec![true; 4]));
        let device = crate::device::autodiff_device();
        let model = Gpt::fresh(12, &device);
        (trajectories.to_vec(), device, model)
    }

    /// Checks that parts of a tree with activation checkpointing have the loss of the whole tree,
    /// and that all parameters get gradients.
    pub fn check(model: &(impl Module + TreeModel), device: &Device) {
        let trajectories = [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 8, 9, 10]]
            .map(|tokens| Trajectory::new("task", "run", tokens.to_vec(), vec![true; 5]));
        let forests = build_forests(&trajectories).unwrap();
        let [whole, parts] = [64, 3].map(|budget| {
            let pack_options = PackOptions {
                partitioning: Partitioning::Connected,
                ..PackOptions::new(budget)
            };
            let options = StepOptions {
                recompute: budget == 3,
                ..StepOptions::default()
            };
            let packed = pack_step(&trajectories, &forests, &pack_options).unwrap();
            let step = step_gradients(model, &packed, &options, device, |_, output, of| {
                sft_loss(output, of)
            });
            let step = step.unwrap();
            assert_eq!(step.without_gradient, Vec::<String>::new());
            let losses = step.losses.into_iter();
            let losses: Vec<f64> = losses.map(|loss| loss.into_scalar()).collect();
            (losses.len(), losses.iter().sum::<f64>())
        });
        assert!(whole.0 == 1 && parts.0 > 2, "{whole:?} {parts:?}");
        assert!((whole.1 - parts.1).abs() < 1e-5, "{whole:?} {parts:?}");
    }
}
