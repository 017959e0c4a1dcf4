//! Statistics of shared prefixes and of the speed-up that packing can give.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::forest::{NOBODY, PrefixForest};
use crate::trajectory::Trajectory;

/// Counts over one task or several.
///
/// Nodes are those of the compressed tree: a node ends where paths diverge or a trajectory ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeStats {
    /// Tasks.
    pub tasks: u64,
    /// Trees: distinct first tokens of each task.
    pub trees: u64,
    /// Trajectories, including equal ones and those that end at an inner node.
    pub trajectories: u64,
    /// Nodes without children; fewer than trajectories if some are equal or prefixes of others.
    pub leaves: u64,
    /// Tokens of all trajectories.
    pub tokens: u64,
    /// Distinct prefixes, each counted once per task: the tokens that tree training computes.
    pub unique_tokens: u64,
    /// Trained targets of all trajectories; the first token of a trajectory is never a target.
    pub trained_tokens: u64,
    /// Tree tokens trained in some trajectory.
    pub unique_trained_tokens: u64,
    /// Nodes.
    pub nodes: u64,
    /// Nodes with more than one child.
    pub branch_nodes: u64,
    /// Children of all branch nodes.
    pub branch_children: u64,
    /// Largest number of children of a node.
    pub max_out_degree: u64,
    /// Largest number of nodes on a path.
    pub max_depth_nodes: u64,
    /// Tokens of the longest trajectory.
    pub longest_path_tokens: u64,
    /// Distinct tokens of the largest tree.
    pub largest_tree_tokens: u64,
    /// Number of tokens whose loss mask differs from that of the first trajectory through the same
    /// tree token.
    pub mask_conflicts: u64,
}

impl TreeStats {
    /// Counts one task. A flat forest is counted as the merged forest from which it was built.
    ///
    /// # Panics
    /// If the forest was not built from `trajectories`.
    pub fn of(forest: &PrefixForest, trajectories: &[Trajectory]) -> Self {
        let forest = forest.merged();
        let mut stats = Self {
            tasks: 1,
            trees: forest.trees().len() as u64,
            trajectories: forest.trajectories().len() as u64,
            unique_tokens: forest.tokens().len() as u64,
            nodes: forest.nodes().len() as u64,
            ..Self::default()
        };
        stats.largest_tree_tokens = forest
            .trees()
            .iter()
            .map(|tree| tree.rows.len() as u64)
            .max()
            .unwrap_or(0);
        stats.count_nodes(forest);
        for (number, &index) in forest.trajectories().iter().enumerate() {
            let trajectory = &trajectories[index as usize];
            stats.tokens += trajectory.len() as u64;
            stats.trained_tokens += trajectory.trained_tokens() as u64;
            stats.longest_path_tokens = stats.longest_path_tokens.max(trajectory.len() as u64);
            stats.mask_conflicts += mask_conflicts(forest, number, trajectories);
        }
        let first_trained = forest.first_trained(trajectories);
        stats.unique_trained_tokens = first_trained
            .iter()
            .filter(|&&first| first != NOBODY)
            .count() as u64;
        stats
    }

    /// Counts all tasks together.
    pub fn of_all(forests: &[PrefixForest], trajectories: &[Trajectory]) -> Self {
        forests
            .par_iter()
            .map(|forest| Self::of(forest, trajectories))
            .reduce(Self::default, Self::combine)
    }

    /// Combines the counts of two sets of tasks: maxima for fields whose names say so, sums for all
    /// others.
    pub fn combine(self, other: Self) -> Self {
        Self {
            tasks: self.tasks + other.tasks,
            trees: self.trees + other.trees,
            trajectories: self.trajectories + other.trajectories,
            leaves: self.leaves + other.leaves,
            tokens: self.tokens + other.tokens,
            unique_tokens: self.unique_tokens + other.unique_tokens,
            trained_tokens: self.trained_tokens + other.trained_tokens,
            unique_trained_tokens: self.unique_trained_tokens + other.unique_trained_tokens,
            nodes: self.nodes + other.nodes,
            branch_nodes: self.branch_nodes + other.branch_nodes,
            branch_children: self.branch_children + other.branch_children,
            max_out_degree: self.max_out_degree.max(other.max_out_degree),
            max_depth_nodes: self.max_depth_nodes.max(other.max_depth_nodes),
            longest_path_tokens: self.longest_path_tokens.max(other.longest_path_tokens),
            largest_tree_tokens: self.largest_tree_tokens.max(other.largest_tree_tokens),
            mask_conflicts: self.mask_conflicts + other.mask_conflicts,
        }
    }

    /// Prefix overlap ratio (POR) `1 - unique_tokens / tokens`: the share of tokens that need not
    /// be computed. 0 if there are no tokens.
    pub fn prefix_overlap_ratio(&self) -> f64 {
        if self.tokens == 0 {
            return 0.0;
        }
        1.0 - self.unique_tokens as f64 / self.tokens as f64
    }

    /// Upper bound `1 / (1 - POR)` of the speed-up, if time is proportional to tokens. 1 if there
    /// are no tokens.
    pub fn token_bound(&self) -> f64 {
        1.0 / (1.0 - self.prefix_overlap_ratio())
    }

    /// Mean number of children of the branch nodes; 0 if there are none.
    pub fn mean_fan_out(&self) -> f64 {
        if self.branch_nodes == 0 {
            return 0.0;
        }
        self.branch_children as f64 / self.branch_nodes as f64
    }

    fn count_nodes(&mut self, forest: &PrefixForest) {
        let nodes = forest.nodes();
        let mut depths: Vec<u64> = Vec::with_capacity(nodes.len());
        let mut children = vec![0u64; nodes.len()];
        for node in nodes {
            let depth = match node.parent {
                Some(parent) => {
                    children[parent as usize] += 1;
                    depths[parent as usize] + 1
                }
                None => 1,
            };
            depths.push(depth);
        }
        self.max_depth_nodes = depths.into_iter().max().unwrap_or(0);
        self.max_out_degree = children.iter().copied().max().unwrap_or(0);
        for children in children {
            match children {
                0 => self.leaves += 1,
                1 => {}
                more => {
                    self.branch_nodes += 1;
                    self.branch_children += more;
                }
            }
        }
    }
}

fn mask_conflicts(forest: &PrefixForest, number: usize, trajectories: &[Trajectory]) -> u64 {
    let mask_of = |number: usize| &trajectories[forest.trajectories()[number] as usize].loss_mask;
    let mut conflicts = 0;
    for node in forest.path(number) {
        let node = &forest.nodes()[node as usize];
        if node.source as usize == number {
            continue;
        }
        // The mask of a first token has no effect.
        let start = (node.position as usize).max(1);
        let end = node.position as usize + node.token_count();
        if start < end {
            let (own, first) = (
                &mask_of(number)[start..end],
                &mask_of(node.source as usize)[start..end],
            );
            conflicts += own
                .iter()
                .zip(first)
                .filter(|(own, first)| own != first)
                .count() as u64;
        }
    }
    conflicts
}

/// Number of active paths at each token position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveOverLength {
    /// Entry `t`: number of trajectories that have a token `t`. Separate sequences compute all of
    /// them.
    pub trajectories: Vec<u64>,
    /// Entry `t`: number of tree tokens at position `t`. Tree training computes only these.
    pub tree_tokens: Vec<u64>,
}

impl ActiveOverLength {
    /// Counts all forests together.
    pub fn of(forests: &[PrefixForest]) -> Self {
        let mut trajectories = Steps::default();
        let mut tree_tokens = Steps::default();
        for forest in forests.iter().map(PrefixForest::merged) {
            for number in 0..forest.trajectories().len() {
                let end = forest.nodes()[forest.end_node(number) as usize];
                trajectories.add(0, end.position as usize + end.token_count());
            }
            for node in forest.nodes() {
                let start = node.position as usize;
                tree_tokens.add(start, start + node.token_count());
            }
        }
        Self {
            trajectories: trajectories.sums(),
            tree_tokens: tree_tokens.sums(),
        }
    }
}

/// A step function, stored as its changes.
#[derive(Default)]
struct Steps(Vec<i64>);

impl Steps {
    fn add(&mut self, start: usize, end: usize) {
        if self.0.len() <= end {
            self.0.resize(end + 1, 0);
        }
        self.0[start] += 1;
        self.0[end] -= 1;
    }

    fn sums(mut self) -> Vec<u64> {
        // The last change only ends intervals.
        self.0.pop();
        let changes = self.0.into_iter();
        let sums = changes.scan(0i64, |sum, change| {
            *sum += change;
            Some(*sum as u64)
        });
        sums.collect()
    }
}
