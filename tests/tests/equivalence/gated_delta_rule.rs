//! The gated delta rule as a single operation.

use burn::tensor::DType;
use proptest::prelude::*;
use tree_pack::{Aggregation, Objective};
use tree_training_tests::device::supports_f64;
use tree_training_tests::forest::{Forest, ForestShape, cases, forests};
use tree_training_tests::gated_delta_rule::{
    DeltaRuleSetup, check_gated_delta_rule, delta_rule_setups,
};
use tree_training_tests::packing::Packing;

fn check_forest(forest: Forest, packing: Packing, setup: &DeltaRuleSetup, dtype: DType) {
    let trajectories = forest.with_disjoint_tasks(64).trajectories();
    let packs = packing
        .pack(&trajectories, Objective::PerOccurrence, Aggregation::Sum)
        .packs;
    check_gated_delta_rule(&packs, &trajectories, setup, dtype);
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn packed_equals_separate_f64(
        forest in forests(ForestShape::default()),
        packing in Packing::strategy(),
        setup in delta_rule_setups(),
    ) {
        if supports_f64() {
            check_forest(forest, packing, &setup, DType::F64);
        }
    }

    #[test]
    fn packed_equals_separate_f32(
        forest in forests(ForestShape::default()),
        packing in Packing::strategy(),
        setup in delta_rule_setups(),
    ) {
        check_forest(forest, packing, &setup, DType::F32);
    }
}

proptest! {
    #![proptest_config(cases(16))]

    /// Nodes of about the length of a window, in rows of several hundred tokens.
    #[test]
    fn packed_equals_separate_over_many_windows(
        forest in forests(ForestShape {
            tasks: 1..=2,
            nodes: 4..=10,
            long_node: 60..=140,
            long_share: 4,
            vocabulary: 13,
        }),
        packing in Packing::strategy(),
        setup in delta_rule_setups(),
    ) {
        check_forest(forest, packing, &setup, DType::F32);
    }
}
