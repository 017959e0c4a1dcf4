//! Models directly from `Config::init`: Burn initialises parameters when they are first read, and
//! clones share them until then, so freezing a clone froze the original.

use burn::module::{Lora, Module};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, FloatDType};
use burn_tree_nn::TokenLogProbs;
use burn_tree_train::{StepOptions, frozen, sft_loss, shadow, step_forward, step_gradients};
use tree_pack::{
    OccurrenceBatch, PackOptions, PackedStep, Partitioning, Trajectory, build_forests, pack_step,
};
use tree_training_tests::device::autodiff_device;
use tree_training_tests::small_gpt::{SmallGpt, trained_parameters};
use tree_training_tests::step::read;

const VOCABULARY: usize = 12;
/// Embedding, head, the final norm, and 8 parameters per block.
const PARAMETERS: usize = 3 + 2 * 8;

fn packed() -> PackedStep {
    let trajectories = [
        &[1, 2, 3, 4, 5, 6][..],
        &[1, 2, 3, 7, 8],
        &[1, 2, 9, 10, 11],
    ]
    .map(|tokens| Trajectory::new("task", "run", tokens.to_vec(), vec![true; tokens.len()]));
    let options = PackOptions {
        partitioning: Partitioning::Connected,
        ..PackOptions::new(6)
    };
    let forests = build_forests(&trajectories).unwrap();
    pack_step(&trajectories, &forests, &options).unwrap()
}

fn supervised(
    _: usize,
    output: TokenLogProbs,
    occurrences: &OccurrenceBatch,
) -> burn::tensor::Tensor<1> {
    sft_loss(output, occurrences)
}

fn loss_of_step(
    model: &SmallGpt,
    options: &StepOptions,
    device: &Device,
) -> (f64, burn::optim::GradientsParams) {
    let step = step_gradients(model, &packed(), options, device, supervised).unwrap();
    assert_eq!(step.without_gradient, Vec::<String>::new());
    (step.loss().unwrap(), step.gradients)
}

fn all_options() -> [StepOptions; 2] {
    [false, true].map(|recompute| StepOptions {
        recompute,
        ..StepOptions::default()
    })
}

/// A new model is first used in a step: its loss falls from then on.
#[test]
fn a_fresh_model_is_trained() {
    let device = autodiff_device();
    for options in all_options() {
        let mut model = SmallGpt::fresh(VOCABULARY, &device);
        let mut optimizer = AdamWConfig::new().init();
        let mut losses = Vec::new();
        for _ in 0..5 {
            let (loss, gradients) = loss_of_step(&model, &options, &device);
            assert_eq!(gradients.len(), PARAMETERS);
            losses.push(loss);
            model = optimizer.step(1e-2, model, gradients);
        }
        assert!(losses.is_sorted_by(|a, b| a > b), "{losses:?}");
    }
}

/// The order of GRPO: log-probabilities first.
#[test]
fn a_fresh_model_is_trained_after_a_forward_pass() {
    let device = autodiff_device();
    for options in all_options() {
        let model = SmallGpt::fresh(VOCABULARY, &device);
        let forward = step_forward(&model, &packed(), &options, &device, |_, output, _| {
            read(&output.log_probs)
        });
        assert!(forward.unwrap().iter().flatten().all(|value| *value < 0.0));
        assert_eq!(trained_parameters(&model), PARAMETERS);
        let (_, gradients) = loss_of_step(&model, &options, &device);
        assert_eq!(gradients.len(), PARAMETERS);
    }
}

/// Operations on copies of a new model do not change it, and the copies have its values.
#[test]
fn copies_of_a_fresh_model_do_not_change_it() {
    let device = autodiff_device();
    let options = StepOptions::default();
    type Copy = fn(&SmallGpt) -> SmallGpt;
    let copies: [(&str, Copy, usize); 4] = [
        ("frozen", |model| frozen(model), 0),
        ("valid", |model| model.valid(), 0),
        (
            "shadow",
            |model| shadow(model, FloatDType::F16, |_| true),
            PARAMETERS,
        ),
        ("clone", Clone::clone, PARAMETERS),
    ];
    for (name, copy, trained) in copies {
        let model = SmallGpt::fresh(VOCABULARY, &device);
        let copy = copy(&model);
        assert_eq!(trained_parameters(&copy), trained, "{name}");
        assert_eq!(trained_parameters(&model), PARAMETERS, "{name}");
        let log_probs = |model: &SmallGpt| {
            let forward = step_forward(model, &packed(), &options, &device, |_, output, _| {
                read(&output.log_probs)
            });
            forward.unwrap()
        };
        if name != "valid" {
            assert_eq!(log_probs(&copy), log_probs(&model), "{name}");
        }
        let (_, gradients) = loss_of_step(&model, &options, &device);
        assert_eq!(gradients.len(), PARAMETERS, "{name}");
    }
}

/// Adapters on a new model: the factors are trained, the adapted weights are not.
#[test]
fn adapters_on_a_fresh_model_are_trained() {
    let device = autodiff_device();
    for options in all_options() {
        let model = SmallGpt::fresh(VOCABULARY, &device).apply_lora(Lora::new(2, 4.0));
        let trained = trained_parameters(&model);
        assert!(trained > 0);
        let step = step_gradients(&model, &packed(), &options, &device, supervised).unwrap();
        assert_eq!(step.gradients.len(), trained);
        assert_eq!(step.without_gradient, Vec::<String>::new());
    }
}
