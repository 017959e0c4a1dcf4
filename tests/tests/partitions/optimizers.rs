//! Several optimizer steps: a model trained on parts stays equal to one trained on whole trees
//! (fault 18: equal in the first step only).

use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::DType;
use burn_tree_models::ModelConfig;
use proptest::prelude::*;
use tree_pack::{Aggregation, Objective};
use tree_training_tests::device::{autodiff_device, supports_f64};
use tree_training_tests::forest::{Forest, ForestShape, cases, forests};
use tree_training_tests::models::{dense_config, hybrid_config, moe_config, random_model};
use tree_training_tests::partition::{Cut, parts_step, step_options, whole_step};
use tree_training_tests::tensors::{NamedTensors, Tolerance};

const VOCABULARY: usize = 17;
const STEPS: usize = 4;

/// In f64, with the tolerance of the same test on separate sequences (see
/// `equivalence/optimizers.rs` for the reasons). In f32 that tolerance would hide errors.
const RELATIVE: f64 = 1e-8;

fn sgd() -> (ModuleOptimizer, f64) {
    (SgdConfig::new().init(), 1e-3)
}

fn adamw() -> (ModuleOptimizer, f64) {
    (AdamWConfig::new().init(), 3e-3)
}

fn check(
    config: &ModelConfig,
    steps: &[(Forest, Cut)],
    options: &burn_tree_train::StepOptions,
    optimizer: fn() -> (ModuleOptimizer, f64),
) -> Result<(), TestCaseError> {
    let (dtype, device) = (DType::F64, autodiff_device());
    let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::TokenMean);
    let start = random_model(config, 7, dtype, &device);
    let (mut in_parts, mut whole) = (start.clone(), start.clone());
    let ((mut parts_optimizer, rate), (mut whole_optimizer, _)) = (optimizer(), optimizer());
    for (forest, cut) in steps {
        let trajectories = forest.trajectories();
        let packed = cut.pack(&trajectories, objective, aggregation);
        let step = parts_step(&in_parts, &packed, options, &device);
        in_parts = parts_optimizer.step(rate, in_parts, step.gradients);
        let step = whole_step(
            &whole,
            &trajectories,
            objective,
            aggregation,
            dtype,
            &device,
        );
        whole = whole_optimizer.step(rate, whole, step.gradients);
    }
    let start = NamedTensors::parameters(&start);
    let moved = |model| NamedTensors::parameters(model).minus(&start);
    let (found, expected) = (moved(&in_parts), moved(&whole));
    prop_assert!(expected.norm() > 1e-3, "moved by {}", expected.norm());
    let tolerance = Tolerance {
        relative: RELATIVE,
        floor: 1e-2,
        exact_zeros: false,
    };
    let checked = found.check(&expected, tolerance);
    prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    Ok(())
}

proptest! {
    #![proptest_config(cases(8))]

    #[test]
    fn steps_on_parts_are_steps_on_whole_trees(
        steps in prop::collection::vec((forests(ForestShape::default()), Cut::strategy()), STEPS),
        options in step_options(),
    ) {
        if supports_f64() {
            for config in [dense_config, moe_config, hybrid_config] {
                check(&config(VOCABULARY), &steps, &options, sgd)?;
                check(&config(VOCABULARY), &steps, &options, adamw)?;
            }
        }
    }
}
