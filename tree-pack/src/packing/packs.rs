//! The packs of all groups of a step.

use rayon::prelude::*;

use super::counted::{CountedStep, TreeIndex};
use super::groups::PackGroup;
use super::occurrences::occurrences_of;
use super::partition::{packs_of_parts, packs_of_smaller_trees};
use super::rules::StepRules;
use crate::layout::TreeLayout;
use crate::packs::Pack;

/// The packs of a step, in order of the groups.
pub fn packs_of_groups(
    step: &CountedStep,
    rules: &StepRules,
    groups: Vec<PackGroup>,
    pad_to_multiple: usize,
) -> Vec<Pack> {
    let mut count = 0;
    let mut first_packs = Vec::with_capacity(groups.len());
    for group in &groups {
        first_packs.push(count as u32);
        count += group.packs();
    }
    let groups = groups.into_par_iter().zip(first_packs);
    let packs = groups.flat_map_iter(|(group, first_pack)| match group {
        PackGroup::Whole(trees) => vec![pack_of_trees(step, rules, &trees, pad_to_multiple)],
        PackGroup::Parts(tree, partition) => {
            let occurrences = occurrences_of(step, rules, &[tree]);
            let nodes = step.nodes_of(tree);
            packs_of_parts(
                &partition,
                &nodes,
                &occurrences,
                first_pack,
                pad_to_multiple,
            )
        }
        PackGroup::Smaller(tree, trees) => {
            let occurrences = occurrences_of(step, rules, &[tree]);
            packs_of_smaller_trees(&trees, &step.nodes_of(tree), &occurrences, pad_to_multiple)
        }
    });
    packs.collect()
}

/// The pack of whole trees.
fn pack_of_trees(
    step: &CountedStep,
    rules: &StepRules,
    trees: &[TreeIndex],
    pad_to_multiple: usize,
) -> Pack {
    let indices = trees.iter();
    let parts = indices.map(|&tree| (step.forest_of(tree).forest, tree.tree as usize));
    let layout = TreeLayout::from_trees(parts.clone());
    let counts = trees.iter().flat_map(|&tree| {
        let tree = step.nodes_of(tree);
        let nodes = tree.nodes.iter().zip(tree.trajectories);
        nodes.flat_map(|(node, &count)| std::iter::repeat_n(count, node.token_count()))
    });
    Pack {
        padded_len: layout.len().next_multiple_of(pad_to_multiple),
        task_ids: parts
            .map(|(forest, _)| forest.task_id().to_owned())
            .collect(),
        occurrences: occurrences_of(step, rules, trees),
        trajectory_counts: counts.collect(),
        gateway: None,
        step: None,
        layout,
    }
}
