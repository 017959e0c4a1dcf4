//! Determinism: two runs, forward passes without gradients, and host offload. Compared bit for bit.

use burn::tensor::{DType, TensorData};
use burn_tree_models::{CausalLm, ModelConfig};
use burn_tree_train::{StepGradients, StepOptions, sft_loss, step_forward, step_gradients};
use tree_pack::{Aggregation, Objective, PackedStep, Partitioning, Trajectory};
use tree_training_tests::device::autodiff_device;
use tree_training_tests::models::{
    dense_config, hybrid_config, hybrid_moe_config, moe_config, random_model,
};
use tree_training_tests::partition::{Cut, all_step_options};
use tree_training_tests::step::read;
use tree_training_tests::tensors::NamedTensors;

const VOCABULARY: usize = 30;

fn configs() -> [ModelConfig; 4] {
    [dense_config, moe_config, hybrid_config, hybrid_moe_config].map(|config| config(VOCABULARY))
}

fn packed() -> PackedStep {
    let mut trajectories = Vec::new();
    for branch in 0..3 {
        for leaf in 0..2 {
            let mut tokens: Vec<u32> = (1..20).collect();
            tokens.extend([20 + branch, 3, 4, 5, 23 + leaf]);
            tokens.extend((1..6).map(|token| 2 * token + branch));
            let mask = vec![true; tokens.len()];
            trajectories.push(Trajectory::new("task", "rollout", tokens, mask));
        }
    }
    let packed = Cut::new(9, Partitioning::Shared).pack(
        &trajectories,
        Objective::PerOccurrence,
        Aggregation::TokenMean,
    );
    assert!(packed.packs.len() > 4);
    packed
}

/// Losses, log-probabilities and gradients.
#[derive(Debug, PartialEq)]
struct Outcome {
    losses: Vec<TensorData>,
    log_probs: Vec<Vec<f64>>,
    gradients: NamedTensors,
}

fn run(model: &CausalLm, packed: &PackedStep, options: &StepOptions) -> Outcome {
    let device = autodiff_device();
    let mut log_probs = vec![None; packed.packs.len()];
    let StepGradients {
        losses, gradients, ..
    } = step_gradients(
        model,
        packed,
        options,
        &device,
        |pack, output, occurrences| {
            // Copied at once, because `into_data` may defer the read and the loss may reuse the
            // tensor's memory.
            log_probs[pack] = Some(read(&output.log_probs));
            sft_loss(output, occurrences)
        },
    )
    .expect("packs of one step");
    Outcome {
        losses: losses.into_iter().map(|loss| loss.into_data()).collect(),
        log_probs: log_probs.into_iter().flatten().collect(),
        gradients: NamedTensors::gradients(model, &gradients),
    }
}

#[test]
fn two_runs_are_the_same() {
    let (device, packed) = (autodiff_device(), packed());
    for config in configs() {
        let model = random_model(&config, 1, DType::F32, &device);
        for options in all_step_options() {
            assert_eq!(
                run(&model, &packed, &options),
                run(&model, &packed, &options)
            );
        }
    }
}

#[test]
fn where_tensors_wait_makes_no_difference() {
    let (device, packed) = (autodiff_device(), packed());
    for config in configs() {
        let model = random_model(&config, 1, DType::F32, &device);
        for options in all_step_options()
            .into_iter()
            .filter(|options| options.offload)
        {
            let on_device = StepOptions {
                offload: false,
                ..options.clone()
            };
            assert_eq!(
                run(&model, &packed, &options),
                run(&model, &packed, &on_device)
            );
        }
    }
}

/// The ratio of probabilities before the first update must be exactly 1.
#[test]
fn log_probs_without_gradients_are_those_of_the_step() {
    let (device, packed) = (autodiff_device(), packed());
    for config in configs() {
        let model = random_model(&config, 1, DType::F32, &device);
        for options in all_step_options() {
            let trained = run(&model, &packed, &options);
            let forward = step_forward(&model, &packed, &options, &device, |_, output, _| {
                read(&output.log_probs)
            });
            assert_eq!(forward.expect("packs of one step"), trained.log_probs);
        }
    }
}
