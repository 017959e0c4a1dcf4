//! Compressed prefix trees of one task: a run of tokens without a branch or an end is one node.

use super::node::{Node, Tree};
use crate::trajectory::Trajectory;

/// No trajectory, in [`PrefixForest::first_trained`].
pub(crate) const NOBODY: u32 = u32::MAX;

/// The prefix trees of a task: every distinct prefix of its trajectories is one row.
///
/// Rows and nodes are in depth-first order, siblings in the order of their first trajectories. A
/// node ends where paths diverge or a trajectory ends; masks and advantages do not split nodes.
/// There is one tree for each distinct first token.
///
/// A flat forest ([`crate::flat_forests`]) has one chain per trajectory instead, so that the
/// baseline without sharing uses the same code.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefixForest {
    pub(super) task_id: String,
    pub(super) trajectories: Vec<u32>,
    pub(super) tokens: Vec<u32>,
    pub(super) nodes: Vec<Node>,
    pub(super) trees: Vec<Tree>,
    pub(super) end_nodes: Vec<u32>,
    /// The merged forest of a flat one, which identifies equal prefixes.
    pub(super) merged: Option<Box<PrefixForest>>,
}

impl PrefixForest {
    /// Name of the task.
    pub fn task_id(&self) -> &str {
        &self.task_id
    }

    /// Indices of the task's trajectories in the data set. Other methods identify a trajectory by
    /// its index in this list.
    pub fn trajectories(&self) -> &[u32] {
        &self.trajectories
    }

    /// `[rows]` token ids.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Nodes in depth-first order; they tile the rows.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The trees, in order of rows.
    pub fn trees(&self) -> &[Tree] {
        &self.trees
    }

    /// Node at whose last row a trajectory ends.
    pub fn end_node(&self, trajectory: usize) -> u32 {
        self.end_nodes[trajectory]
    }

    /// Index in [`PrefixForest::trees`] of the tree a trajectory belongs to.
    pub fn tree_of(&self, trajectory: usize) -> usize {
        let end = self.end_nodes[trajectory];
        self.trees.partition_point(|tree| tree.nodes.end <= end)
    }

    /// Whether every trajectory is a separate chain.
    pub fn is_flat(&self) -> bool {
        self.merged.is_some()
    }

    /// The forest in which equal prefixes are one row: the forest itself unless it is flat.
    pub fn merged(&self) -> &PrefixForest {
        self.merged.as_deref().unwrap_or(self)
    }

    /// Nodes from the root to the end of a trajectory.
    pub fn path(&self, trajectory: usize) -> Vec<u32> {
        let mut path = Vec::new();
        let mut next = Some(self.end_nodes[trajectory]);
        while let Some(node) = next {
            path.push(node);
            next = self.nodes[node as usize].parent;
        }
        path.reverse();
        path
    }

    /// `[T]` rows of the tokens of a trajectory.
    pub fn rows_of(&self, trajectory: usize) -> Vec<u32> {
        let nodes = self
            .path(trajectory)
            .into_iter()
            .map(|node| &self.nodes[node as usize]);
        nodes.flat_map(|node| node.start..node.end).collect()
    }

    /// Children of a node, in order of rows.
    pub fn children(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let end = self.nodes[node as usize].subtree_end_node;
        let first = Some(node + 1).filter(|&child| child < end);
        std::iter::successors(first, move |&child| {
            Some(self.nodes[child as usize].subtree_end_node).filter(|&next| next < end)
        })
    }

    /// Number of trajectories through each node, including equal ones.
    pub fn trajectories_by_node(&self) -> Vec<u32> {
        let mut counts = vec![0; self.nodes.len()];
        for &end in &self.end_nodes {
            counts[end as usize] += 1;
        }
        // A node comes before its children.
        for (number, node) in self.nodes.iter().enumerate().rev() {
            if let Some(parent) = node.parent {
                counts[parent as usize] += counts[number];
            }
        }
        counts
    }

    /// Calls `visit(row, index)` for every trained token of a trajectory; `index` is its index in
    /// the trajectory.
    pub(crate) fn for_each_trained(
        &self,
        trajectory: usize,
        loss_mask: &[bool],
        mut visit: impl FnMut(usize, usize),
    ) {
        for node in self.path(trajectory) {
            let node = &self.nodes[node as usize];
            let (start, position) = (node.start as usize, node.position as usize);
            let mask = &loss_mask[position..position + node.token_count()];
            for (offset, _) in mask.iter().enumerate().filter(|(_, trained)| **trained) {
                // No token predicts the first token of a path.
                if position + offset > 0 {
                    visit(start + offset, position + offset);
                }
            }
        }
    }

    /// `[rows]` number of the first trajectory that trains each row's token, or [`NOBODY`].
    pub(crate) fn first_trained(&self, trajectories: &[Trajectory]) -> Vec<u32> {
        let mut first = vec![NOBODY; self.tokens.len()];
        for (number, &index) in self.trajectories.iter().enumerate() {
            let mask = &trajectories[index as usize].loss_mask;
            self.for_each_trained(number, mask, |row, _| {
                first[row] = first[row].min(number as u32);
            });
        }
        first
    }
}
