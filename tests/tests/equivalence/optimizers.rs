//! Several optimizer steps: one model trained on packed trees and a copy trained on separate
//! sequences stay equal.

use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::DType;
use burn_tree_models::{LayerType, ModelConfig};
use burn_tree_train::sft_loss;
use proptest::prelude::*;
use tree_pack::{Aggregation, LossForm, Objective};
use tree_training_tests::device::{autodiff_device, test_dtypes};
use tree_training_tests::forest::{Forest, ForestShape, cases, forests};
use tree_training_tests::models::{dense_config, hybrid_config, moe_config, random_model};
use tree_training_tests::oracle::loss::prediction_weights;
use tree_training_tests::packing::Packing;
use tree_training_tests::step::{Batching, packed_step, separate_step};
use tree_training_tests::tensors::{NamedTensors, Tolerance};

const VOCABULARY: usize = 17;
const STEPS: usize = 4;

/// Tolerance of a parameter tensor after all steps, relative to its change.
///
/// The gradients of each step agree to 1e-4 (f32) and 1e-10 (f64). The errors of four steps add up,
/// and each step starts from parameters that already differ. AdamW divides by the magnitude of the
/// gradient, so entries near zero lose precision: one more digit, and in f32 more, because an entry
/// may be rounding only. Recurrent layers lose more in f32, too: the gradient of the decay
/// projection is a small difference of large terms, and a state accumulates the rounding of every
/// token of its path.
fn tolerance(config: &ModelConfig, dtype: DType, adaptive: bool) -> f64 {
    let recurrent = config
        .layer_types
        .iter()
        .any(|layer| matches!(layer, LayerType::LinearAttention(_)));
    match (dtype, adaptive || recurrent) {
        (DType::F64, false) => 1e-9,
        (DType::F64, true) => 1e-8,
        (_, false) => 5e-4,
        (_, true) => 2e-2,
    }
}

fn check(
    config: &ModelConfig,
    steps: &[Forest],
    packing: Packing,
    optimizer: fn() -> ModuleOptimizer,
    learning_rate: f64,
    adaptive: bool,
    dtype: DType,
) {
    let device = autodiff_device();
    let start = random_model(config, 7, dtype, &device);
    let (mut packed_model, mut separate_model) = (start.clone(), start.clone());
    let (mut packed_optimizer, mut separate_optimizer) = (optimizer(), optimizer());
    let (objective, aggregation) = (Objective::PerPath, Aggregation::SepAvg);
    for (index, forest) in steps.iter().enumerate() {
        let trajectories = forest.trajectories();
        let step = packing.pack_for(
            &trajectories,
            objective,
            aggregation,
            LossForm::LogLikelihood,
        );
        let packed = packed_step(
            &packed_model,
            &step,
            Batching::OneByOne,
            dtype,
            &device,
            sft_loss,
        );
        let weights = prediction_weights(&trajectories, objective, aggregation);
        let separate = separate_step(&separate_model, &trajectories, &weights, dtype, &device);
        let difference = (packed.loss - separate.loss).abs() / (1.0 + separate.loss);
        let allowed = tolerance(config, dtype, adaptive);
        assert!(
            difference <= allowed,
            "step {index}: loss differs by {difference:e}"
        );
        packed_model = packed_optimizer.step(learning_rate, packed_model, packed.gradients);
        separate_model = separate_optimizer.step(learning_rate, separate_model, separate.gradients);
    }
    let start = NamedTensors::parameters(&start);
    let moved = |model| NamedTensors::parameters(model).minus(&start);
    let tolerance = Tolerance {
        relative: tolerance(config, dtype, adaptive),
        floor: 1e-2,
        exact_zeros: false,
    };
    let (packed, separate) = (moved(&packed_model), moved(&separate_model));
    assert!(
        separate.norm() > 1e-3,
        "the steps must move the parameters: {}",
        separate.norm()
    );
    packed
        .check(&separate, tolerance)
        .unwrap_or_else(|error| panic!("{error}"));
}

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn gradient_descent(
        steps in prop::collection::vec(forests(ForestShape::default()), STEPS),
        packing in Packing::strategy(),
    ) {
        for dtype in test_dtypes() {
            check(&dense_config(VOCABULARY), &steps, packing, sgd, 0.05, false, dtype);
        }
    }

    #[test]
    fn adam_with_weight_decay(
        steps in prop::collection::vec(forests(ForestShape::default()), STEPS),
        packing in Packing::strategy(),
    ) {
        for dtype in test_dtypes() {
            check(&dense_config(VOCABULARY), &steps, packing, adamw, 3e-3, true, dtype);
        }
    }

    /// Small steps: gradients through the norms of a random recurrent layer are so large that
    /// larger steps would move the model far away, where f32 has too few digits for a comparison.
    #[test]
    fn hybrid(
        steps in prop::collection::vec(forests(ForestShape::default()), STEPS),
        packing in Packing::strategy(),
    ) {
        for dtype in test_dtypes() {
            check(&hybrid_config(VOCABULARY), &steps, packing, sgd, 1e-3, false, dtype);
            check(&hybrid_config(VOCABULARY), &steps, packing, adamw, 3e-3, true, dtype);
        }
    }

    /// In f64 only: rounding in f32 may change the experts of a token from the second step on.
    #[test]
    fn mixture_of_experts(
        steps in prop::collection::vec(forests(ForestShape::default()), STEPS),
        packing in Packing::strategy(),
    ) {
        for dtype in test_dtypes().into_iter().filter(|&dtype| dtype == DType::F64) {
            check(&moe_config(VOCABULARY), &steps, packing, sgd, 0.05, false, dtype);
            check(&moe_config(VOCABULARY), &steps, packing, adamw, 3e-3, true, dtype);
        }
    }
}
