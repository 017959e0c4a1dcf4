//! Tree attention as a single operation.

use burn::tensor::DType;
use proptest::prelude::*;
use tree_pack::{Aggregation, Objective};
use tree_training_tests::attention::{AttentionSetup, attention_setups, check_attention};
use tree_training_tests::device::{supports_f64, test_dtypes};
use tree_training_tests::forest::{Forest, ForestShape, cases, forests};
use tree_training_tests::packing::Packing;

fn check_forest(forest: Forest, packing: Packing, setup: &AttentionSetup, dtype: DType) {
    let trajectories = forest.with_disjoint_tasks(64).trajectories();
    let packs = packing
        .pack(&trajectories, Objective::PerOccurrence, Aggregation::Sum)
        .packs;
    check_attention(&packs, &trajectories, setup, dtype);
}

proptest! {
    #![proptest_config(cases(160))]

    #[test]
    fn packed_equals_separate_f64(
        forest in forests(ForestShape::default()),
        packing in Packing::strategy(),
        setup in attention_setups(),
    ) {
        if supports_f64() {
            check_forest(forest, packing, &setup, DType::F64);
        }
    }

    #[test]
    fn packed_equals_separate_f32(
        forest in forests(ForestShape::default()),
        packing in Packing::strategy(),
        setup in attention_setups(),
    ) {
        check_forest(forest, packing, &setup, DType::F32);
    }
}

proptest! {
    #![proptest_config(cases(24))]

    /// Rows of several hundred tokens with nodes as long as a tile.
    #[test]
    fn packed_equals_separate_over_many_tiles(
        forest in forests(ForestShape {
            tasks: 1..=2,
            nodes: 4..=10,
            long_node: 60..=140,
            long_share: 4,
            vocabulary: 13,
        }),
        packing in Packing::strategy(),
        setup in attention_setups(),
    ) {
        check_forest(forest, packing, &setup, DType::F32);
    }
}

proptest! {
    #![proptest_config(cases(6))]

    /// Paths longer than a tile of keys (512 on Flex).
    #[test]
    fn packed_equals_separate_over_long_paths(
        forest in forests(ForestShape {
            tasks: 1..=1,
            nodes: 3..=5,
            long_node: 450..=700,
            long_share: 4,
            vocabulary: 13,
        }),
        packing in Packing::strategy(),
        setup in attention_setups(),
    ) {
        for dtype in test_dtypes() {
            check_forest(forest.clone(), packing, &setup, dtype);
        }
    }
}
