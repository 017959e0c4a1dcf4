//! What goes into which pack.

use proptest::prelude::*;
use tree_pack::{
    Aggregation, Objective, PackError, PackOptions, PackedStep, Trajectory, build_forests,
    pack_step,
};
use tree_training_tests::forest::{ForestShape, cases, forests};
use tree_training_tests::packing::Packing;

fn try_pack(trajectories: &[Trajectory], budget: usize) -> Result<PackedStep, PackError> {
    let forests = build_forests(trajectories).expect("valid trajectories");
    pack_step(trajectories, &forests, &PackOptions::new(budget))
}

/// The budget bounds tree tokens: a bushy tree of short paths fits if they do, however many times
/// its longest path they are, and is refused by name if they do not.
#[test]
fn budget_is_for_trees_not_for_paths() {
    // 100 branches of 10 tokens after a trunk of 2: paths of 12, a tree of 1002.
    let trajectories: Vec<_> = (0..100)
        .map(|branch| {
            let tokens = [1, 2]
                .into_iter()
                .chain((0..10).map(|t| 10 + 10 * branch + t));
            Trajectory::new("bushy", "rollout", tokens.collect(), vec![true; 12])
        })
        .collect();
    let step = try_pack(&trajectories, 1002).expect("a tree as large as the budget");
    assert_eq!(step.packs.len(), 1);
    assert_eq!(step.packs[0].layout.len(), 1002);

    let error = try_pack(&trajectories, 1001).expect_err("a tree over the budget");
    let PackError::TreeOverBudget {
        ref task_id,
        tokens,
        longest_path,
        token_budget,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (task_id.as_str(), tokens, longest_path, token_budget),
        ("bushy", 1002, 12, 1001)
    );
    let message = error.to_string();
    for part in ["bushy", "1002", "12", "1001"] {
        assert!(message.contains(part), "{message}");
    }
    // A path longer than the budget is another thing, and refused, too.
    let long = [Trajectory::new(
        "long",
        "rollout",
        (0..50).collect(),
        vec![true; 50],
    )];
    assert!(matches!(
        try_pack(&long, 49),
        Err(PackError::TreeOverBudget { .. })
    ));
}

/// A tree in a pack: its rows relative to its first one.
type RelativeTree = (Vec<u32>, Vec<u32>, Vec<i64>, Vec<u32>);

/// The trees of all packs, each cut out of its row, with its nodes.
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
                // The root has no parent: the same number for all.
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

    /// Whatever the budget and the padding, each tree is laid out in one piece and the same way:
    /// packing moves no branch point.
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
