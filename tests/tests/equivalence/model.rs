//! Models: losses, log-probabilities and gradients of packed and separate steps.

use burn::tensor::DType;
use burn_tree_models::ModelConfig;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tree_training_tests::device::{autodiff_device, supports_f64};
use tree_training_tests::equality::{StepSetup, compare_step, step_setups};
use tree_training_tests::forest::{Forest, ForestShape, cases, forests};
use tree_training_tests::models::{
    dense_config, hybrid_config, hybrid_moe_config, moe_config, random_model,
};
use tree_training_tests::step::smallest_router_gap;

/// More tokens than in the random forests, so that some rows of the embedding get no gradient.
const VOCABULARY: usize = 17;

/// Router probabilities closer than this may be ordered differently in two f32 computations of the
/// same token.
const ROUTER_GAP: f64 = 1e-5;

fn check(config: &ModelConfig, forest: &Forest, setup: &StepSetup, dtype: DType) -> TestCaseResult {
    let device = autodiff_device();
    let model = random_model(config, setup.seed, dtype, &device);
    let trajectories = forest.trajectories();
    if dtype == DType::F32 && config.moe.is_some() {
        let gap = smallest_router_gap(&model, &trajectories, &device);
        prop_assume!(gap > ROUTER_GAP, "a router tie");
    }
    let result = compare_step(&model, &trajectories, setup, dtype, &device);
    prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    Ok(())
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn dense_f64(forest in forests(ForestShape::default()), setup in step_setups()) {
        if supports_f64() {
            check(&dense_config(VOCABULARY), &forest, &setup, DType::F64)?;
        }
    }

    #[test]
    fn dense_f32(forest in forests(ForestShape::default()), setup in step_setups()) {
        check(&dense_config(VOCABULARY), &forest, &setup, DType::F32)?;
    }

    #[test]
    fn mixture_of_experts_f64(forest in forests(ForestShape::default()), setup in step_setups()) {
        if supports_f64() {
            check(&moe_config(VOCABULARY), &forest, &setup, DType::F64)?;
        }
    }

    #[test]
    fn mixture_of_experts_f32(forest in forests(ForestShape::default()), setup in step_setups()) {
        check(&moe_config(VOCABULARY), &forest, &setup, DType::F32)?;
    }

    #[test]
    fn hybrid_f64(forest in forests(ForestShape::default()), setup in step_setups()) {
        if supports_f64() {
            check(&hybrid_config(VOCABULARY), &forest, &setup, DType::F64)?;
        }
    }

    #[test]
    fn hybrid_f32(forest in forests(ForestShape::default()), setup in step_setups()) {
        check(&hybrid_config(VOCABULARY), &forest, &setup, DType::F32)?;
    }

    #[test]
    fn hybrid_mixture_of_experts_f64(
        forest in forests(ForestShape::default()),
        setup in step_setups(),
    ) {
        if supports_f64() {
            check(&hybrid_moe_config(VOCABULARY), &forest, &setup, DType::F64)?;
        }
    }

    #[test]
    fn hybrid_mixture_of_experts_f32(
        forest in forests(ForestShape::default()),
        setup in step_setups(),
    ) {
        check(&hybrid_moe_config(VOCABULARY), &forest, &setup, DType::F32)?;
    }
}
