//! Places where the trajectories of a task diverge.

use crate::forest::PrefixForest;
use crate::trajectory::Trajectory;

/// A place where trajectories of a task diverge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// Node after whose last token they diverge; `None` if their first tokens differ.
    pub node: Option<u32>,
    /// Number of shared tokens, which is the index of the first different token.
    pub position: u32,
    /// The branches, in order of rows; at least two.
    pub branches: Vec<Branch>,
}

/// One branch of a [`Fork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its first node.
    pub node: u32,
    /// First trajectory through it, as an index in the data set.
    pub trajectory: u32,
    /// Number of trajectories through it.
    pub trajectories: u32,
    /// Rows of its subtree: each token counts once.
    pub tokens: u32,
    /// Whether the first trajectory trains the first token of the branch, which was then sampled
    /// and not part of a prompt.
    pub is_trained: bool,
}

/// The places where trajectories of a task diverge, in order of rows. Takes time linear in the
/// number of nodes, independent of the number of trajectories.
///
/// A trajectory that ends where others continue does not diverge from them.
pub fn forks(forest: &PrefixForest, trajectories: &[Trajectory]) -> Vec<Fork> {
    let shared_by = forest.trajectories_by_node();
    let branch = |node: u32| {
        let first = &forest.nodes()[node as usize];
        let trajectory = forest.trajectories()[first.source as usize];
        Branch {
            node,
            trajectory,
            trajectories: shared_by[node as usize],
            tokens: first.subtree_end - first.start,
            is_trained: trajectories[trajectory as usize].is_trained(first.position as usize),
        }
    };
    let fork = |node: Option<u32>, position, nodes: Vec<u32>| {
        (nodes.len() > 1).then(|| Fork {
            node,
            position,
            branches: nodes.into_iter().map(branch).collect(),
        })
    };
    let roots = forest.trees().iter().map(|tree| tree.nodes.start).collect();
    let below = (0u32..).zip(forest.nodes()).filter_map(|(number, node)| {
        let position = node.position + (node.end - node.start);
        fork(Some(number), position, forest.children(number).collect())
    });
    fork(None, 0, roots).into_iter().chain(below).collect()
}
