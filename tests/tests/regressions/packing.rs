//! The contents of packs; `tree-pack` has further tests.

use proptest::prelude::*;
use tree_pack::{Aggregation, Objective, PackedStep};
use tree_training_tests::forest::{ForestShape, cases, forests};
use tree_training_tests::packing::Packing;

/// A tree in a pack: its rows relative to its first one.
type RelativeTree = (Vec<u32>, Vec<u32>, Vec<i64>, Vec<u32>);

/// The trees of all packs, each extracted from its row, with its nodes.
fn trees(step: &PackedStep) -> Vec<RelativeTree> {
    let mut trees = Vec::new();
    for pack in &step.packs {
        let layout = &pack.layout;
        let mut root = 0;
        while root < layout.len() {
            let end = layout.subtree_ends[root] as usize;
            let rows = root..end;
            let parents = layout.parents[rows.clone()].iter();
            let parents = parents.map(|&parent| i64::from(parent) - root as i64);
            let starts = layout.segments.iter().map(|segment| segment.start as usize);
            let starts = starts.filter(|start| rows.contains(start));
            trees.push((
                layout.tokens[rows.clone()].to_vec(),
                layout.position_ids[rows.clone()].to_vec(),
                // The root has no parent: the same value for all trees.
                parents.map(|parent| parent.max(-1)).collect(),
                starts.map(|start| (start - root) as u32).collect(),
            ));
            root = end;
        }
    }
    trees.sort();
    trees
}

proptest! {
    #![proptest_config(cases(200))]

    /// For any budget and padding, each tree has the same contiguous layout: packing moves no
    /// branch point.
    #[test]
    fn packing_again_moves_no_branch_point(
        forest in forests(ForestShape { tasks: 1..=6, ..ForestShape::default() }),
        packings in prop::collection::vec(Packing::strategy(), 1..4),
    ) {
        let trajectories = forest.trajectories();
        let pack = |packing: Packing| {
            packing.pack(&trajectories, Objective::PerOccurrence, Aggregation::Sum)
        };
        let expected = trees(&pack(Packing::ONE_PACK));
        for packing in packings {
            prop_assert_eq!(&trees(&pack(packing)), &expected);
        }
        prop_assert_eq!(&trees(&pack(Packing::SMALL_PACKS)), &expected);
    }
}
