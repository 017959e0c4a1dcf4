//! Groups of packs: trees that share a pack, and packs that share a tree.

use rayon::prelude::*;

use super::bins::fill_bins_evenly;
use super::counted::{CountedStep, TreeIndex};
use super::error::PackError;
use super::options::{PackOptions, Partitioning};
use super::partition::{Partition, SmallerTrees, fewest_cuts, node_cuts, shared_parts};

/// Trees whose packs are built together.
pub enum PackGroup {
    /// Whole trees that share a pack, in ascending order.
    Whole(Vec<TreeIndex>),
    /// A tree in parts, each a pack.
    Parts(TreeIndex, Partition),
    /// A tree as smaller trees with repeated prefixes, each a pack.
    Smaller(TreeIndex, SmallerTrees),
}

impl PackGroup {
    /// Number of packs.
    pub fn packs(&self) -> usize {
        match self {
            Self::Whole(_) => 1,
            Self::Parts(_, partition) => partition.len(),
            Self::Smaller(_, trees) => trees.len(),
        }
    }

    fn first_tree(&self) -> TreeIndex {
        match *self {
            Self::Whole(ref trees) => trees[0],
            Self::Parts(tree, _) | Self::Smaller(tree, _) => tree,
        }
    }
}

/// Assigns every tree of a step to a group; groups are in the order of their first trees.
///
/// # Errors
/// [`PackError`] of the first tree or path that exceeds the budget and is not to be split.
pub fn pack_groups(step: &CountedStep, options: &PackOptions) -> Result<Vec<PackGroup>, PackError> {
    let budget = options.token_budget;
    let tokens_of = |&tree: &TreeIndex| step.tree(tree).rows.len();
    let per_node = options.partitioning == Partitioning::PerNode;
    let (whole, split): (Vec<_>, Vec<_>) = step
        .trees()
        .partition(|tree| tokens_of(tree) <= budget && !per_node);
    let sizes: Vec<usize> = whole.iter().map(tokens_of).collect();
    let bins = fill_bins_evenly(&sizes, budget, options.ranks).into_iter();
    let mut groups: Vec<PackGroup> = bins
        .map(|bin| PackGroup::Whole(bin.into_iter().map(|item| whole[item as usize]).collect()))
        .collect();
    // Collecting the results first makes the reported error that of the first tree.
    let split: Vec<_> = split
        .into_par_iter()
        .map(|tree| split_tree(step, tree, options))
        .collect();
    groups.extend(split.into_iter().collect::<Result<Vec<_>, PackError>>()?);
    groups.sort_unstable_by_key(PackGroup::first_tree);
    Ok(groups)
}

/// The group of a tree that exceeds the budget, or whose nodes become parts.
fn split_tree(
    step: &CountedStep,
    tree: TreeIndex,
    options: &PackOptions,
) -> Result<PackGroup, PackError> {
    let budget = options.token_budget;
    let nodes = step.nodes_of(tree);
    let partition = match options.partitioning {
        Partitioning::Refuse => return Err(over_budget(step, tree, budget)),
        Partitioning::Connected => {
            let cuts = fewest_cuts(nodes.nodes, budget as u32);
            Partition::new(&nodes, budget as u32, &cuts)
        }
        Partitioning::Shared => shared_parts(&nodes, budget as u32),
        Partitioning::PerNode => {
            let cuts = node_cuts(nodes.nodes, budget as u32);
            Partition::new(&nodes, budget as u32, &cuts)
        }
        Partitioning::RepeatedPrefixes => {
            return match SmallerTrees::new(nodes.nodes, budget) {
                Ok(trees) => Ok(PackGroup::Smaller(tree, trees)),
                Err(tokens) => Err(PackError::PathOverBudget {
                    task_id: nodes.forest.task_id().to_owned(),
                    tree: tree.tree as usize,
                    tokens,
                    token_budget: budget,
                }),
            };
        }
    };
    Ok(PackGroup::Parts(tree, partition))
}

fn over_budget(step: &CountedStep, tree: TreeIndex, budget: usize) -> PackError {
    let counted = step.forest_of(tree);
    let forest = counted.forest;
    let members = counted.members_of(tree.tree);
    let lengths = members.iter().map(|&member| {
        let end = forest.nodes()[forest.end_node(member as usize) as usize];
        end.position as usize + end.token_count()
    });
    PackError::TreeOverBudget {
        task_id: forest.task_id().to_owned(),
        tree: tree.tree as usize,
        tokens: step.tree(tree).rows.len(),
        trajectories: members.len(),
        longest_path: lengths.max().unwrap_or(0),
        token_budget: budget,
    }
}
