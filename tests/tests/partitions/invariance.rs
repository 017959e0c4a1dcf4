//! Random trees in random parts compared with the whole trees in one pack, computed by a plain
//! forward and backward pass.

use burn::tensor::DType;
use burn_tree_models::{LayerType, ModelConfig};
use burn_tree_train::StepOptions;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tree_pack::{Aggregation, Objective, Partitioning, Trajectory};
use tree_training_tests::device::{autodiff_device, supports_f64, test_dtypes};
use tree_training_tests::equality::bars;
use tree_training_tests::forest::{Forest, ForestShape, cases, forests};
use tree_training_tests::models::{
    dense_config, hybrid_config, hybrid_moe_config, moe_config, random_model,
};
use tree_training_tests::partition::{Cut, compare, parts_step, step_options, whole_step};
use tree_training_tests::step::smallest_router_gap;
use tree_training_tests::tensors::Tolerance;

const VOCABULARY: usize = 17;

/// Router probabilities closer than this may be ordered differently in two f32 computations of
/// the same token.
const ROUTER_GAP: f64 = 1e-5;

/// A hybrid model without its attention block: states and convolutions alone.
fn recurrent_config() -> ModelConfig {
    let hybrid = hybrid_config(VOCABULARY);
    let layers = hybrid.layer_types.iter().copied();
    let layer_types: Vec<_> = layers
        .filter(|layer| matches!(layer, LayerType::LinearAttention(_)))
        .collect();
    ModelConfig {
        num_hidden_layers: layer_types.len(),
        layer_types,
        ..hybrid
    }
}

fn check(
    config: &ModelConfig,
    forest: &Forest,
    cut: Cut,
    options: &StepOptions,
    seed: u64,
    dtype: DType,
) -> TestCaseResult {
    let device = autodiff_device();
    let model = random_model(config, seed, dtype, &device);
    let trajectories = forest.trajectories();
    if dtype == DType::F32 && config.moe.is_some() {
        let gap = smallest_router_gap(&model, &trajectories, &device);
        prop_assume!(gap > ROUTER_GAP, "a router tie");
    }
    let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::TokenMean);
    let expected = whole_step(
        &model,
        &trajectories,
        objective,
        aggregation,
        dtype,
        &device,
    );
    let packed = cut.pack(&trajectories, objective, aggregation);
    let found = parts_step(&model, &packed, options, &device);
    let (_, gradient) = bars(dtype);
    let compared = compare(&model, &found, &expected, dtype, gradient);
    prop_assert!(compared.is_ok(), "{}", compared.unwrap_err());
    Ok(())
}

macro_rules! random_parts {
    ($($name:ident: $config:expr, $dtype:expr;)*) => {
        proptest! {
            #![proptest_config(cases(48))]
            $(
                #[test]
                fn $name(
                    forest in forests(ForestShape::default()),
                    cut in Cut::strategy(),
                    options in step_options(),
                    seed in any::<u64>(),
                ) {
                    if $dtype != DType::F64 || supports_f64() {
                        check(&$config, &forest, cut, &options, seed, $dtype)?;
                    }
                }
            )*
        }
    };
}

random_parts! {
    dense_f64: dense_config(VOCABULARY), DType::F64;
    dense_f32: dense_config(VOCABULARY), DType::F32;
    mixture_of_experts_f64: moe_config(VOCABULARY), DType::F64;
    mixture_of_experts_f32: moe_config(VOCABULARY), DType::F32;
    recurrent_f64: recurrent_config(), DType::F64;
    hybrid_f64: hybrid_config(VOCABULARY), DType::F64;
    hybrid_f32: hybrid_config(VOCABULARY), DType::F32;
    hybrid_mixture_of_experts_f64: hybrid_moe_config(VOCABULARY), DType::F64;
    hybrid_mixture_of_experts_f32: hybrid_moe_config(VOCABULARY), DType::F32;
}

/// A tree of 1,350 tokens: forks of three and two, a long trunk, single tokens and long branches,
/// trajectories that end inside others.
fn large_tree() -> Vec<Trajectory> {
    let run = |start: u32, length: u32| (0..length).map(move |i| (start + i * i) % 13);
    let trunk: Vec<u32> = run(1, 400).collect();
    let mut trajectories = Vec::new();
    let mut push = |tokens: Vec<u32>| {
        let mask = (0..tokens.len()).map(|t| t % 5 != 0).collect();
        let name = trajectories.len().to_string();
        trajectories.push(Trajectory::new("task", name, tokens, mask));
    };
    for branch in 0..3 {
        let mut tokens = trunk.clone();
        tokens.push(13 + branch);
        tokens.extend(run(branch, 150));
        if branch == 1 {
            push(tokens.clone());
        }
        for leaf in 0..2 {
            let mut tokens = tokens.clone();
            tokens.push(13 + leaf);
            tokens.extend(run(5 * leaf + branch, 1 + 160 * leaf));
            push(tokens);
        }
    }
    trajectories
}

#[test]
fn a_large_tree_in_parts_of_every_size() {
    let device = autodiff_device();
    let trajectories = large_tree();
    let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::TrajectoryMean);
    // In f32, hybrid models have the tolerance of attention models, and recurrent layers alone
    // their own. In f64, one model with all features, because this takes a while.
    let runs = [
        (dense_config(VOCABULARY), DType::F32, 1e-4),
        (hybrid_config(VOCABULARY), DType::F32, 1e-4),
        (recurrent_config(), DType::F32, 2e-5),
        (hybrid_config(VOCABULARY), DType::F64, 1e-10),
    ];
    for (config, dtype, relative) in runs {
        if !test_dtypes().contains(&dtype) {
            continue;
        }
        let model = random_model(&config, 3, dtype, &device);
        let expected = whole_step(
            &model,
            &trajectories,
            objective,
            aggregation,
            dtype,
            &device,
        );
        for budget in [1 << 20, 1000, 100, 20, 10, 3] {
            let partitioning = match budget {
                20.. => Partitioning::Connected,
                _ => Partitioning::Shared,
            };
            let cut = Cut::new(budget, partitioning);
            let packed = cut.pack(&trajectories, objective, aggregation);
            let found = parts_step(&model, &packed, &StepOptions::default(), &device);
            let bar = Tolerance {
                relative,
                ..bars(dtype).1
            };
            let worst = compare(&model, &found, &expected, dtype, bar)
                .unwrap_or_else(|error| panic!("{cut:?}, {dtype:?}: {error}"));
            println!("{} parts, {dtype:?}: {worst}", packed.packs.len());
        }
    }
}
