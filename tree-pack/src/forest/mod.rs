//! Prefix trees of the trajectories of one task, compressed: a run of tokens without a branch or
//! an end is one node.

mod builder;

use std::ops::Range;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use self::builder::Builder;
use crate::trajectory::{FieldError, Trajectory};

/// Most rows of a forest or a pack: rows travel as signed 32-bit integers.
pub const MAX_ROWS: usize = i32::MAX as usize;

/// No trajectory, in [`PrefixForest::first_trained`].
pub(crate) const NOBODY: u32 = u32::MAX;

/// A run of tokens that all the same trajectories share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// First row.
    pub start: u32,
    /// One past the last row.
    pub end: u32,
    /// One past the last row of the subtree.
    pub subtree_end: u32,
    /// One past the last node of the subtree.
    pub subtree_end_node: u32,
    /// The node before it on its paths; `None` at a root.
    pub parent: Option<u32>,
    /// Number of tokens before it on its paths.
    pub position: u32,
    /// First trajectory through the node, as an index in [`PrefixForest::trajectories`].
    pub source: u32,
}

impl Node {
    /// Number of tokens; never 0.
    pub fn token_count(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// One tree of a forest: a root and all below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Its nodes.
    pub nodes: Range<u32>,
    /// Its rows.
    pub rows: Range<u32>,
}

/// The prefix trees of a task: every distinct prefix of its trajectories is one row.
///
/// Rows and nodes are in depth-first order, siblings in the order in which their first
/// trajectories were given. A node ends where paths part or a trajectory ends; masks and
/// advantages do not split nodes. There is one tree for each distinct first token.
///
/// The flat form ([`flat_forests`]) has a chain of its own for every trajectory instead, so that
/// the unshared baseline passes through the same code.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefixForest {
    task_id: String,
    trajectories: Vec<u32>,
    tokens: Vec<u32>,
    nodes: Vec<Node>,
    trees: Vec<Tree>,
    end_nodes: Vec<u32>,
    /// The merged forest of a flat one, which knows which tokens are the same.
    merged: Option<Box<PrefixForest>>,
}

/// Why a forest cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForestError {
    /// A trajectory does not pass [`Trajectory::validate`].
    #[error("trajectory {index} (task {task_id:?}, rollout {rollout_id:?}): {error}")]
    Trajectory {
        /// Index in the data set.
        index: usize,
        /// Its task.
        task_id: String,
        /// Its rollout.
        rollout_id: String,
        /// What is wrong.
        #[source]
        error: Box<FieldError>,
    },
    /// Trajectories given as those of one task are not.
    #[error("trajectory 0 is of task {task_id:?}, but trajectory {index} of {other_task_id:?}")]
    SeveralTasks {
        /// The task of the first trajectory.
        task_id: String,
        /// Index of the first one of another task.
        index: usize,
        /// The other task.
        other_task_id: String,
    },
    /// A task has more rows, or the data set more trajectories, than fit an index.
    #[error("task {task_id:?}: {count} {what}, at most {MAX_ROWS} are supported")]
    TooLarge {
        /// The task.
        task_id: String,
        /// What there is too much of.
        what: &'static str,
        /// How much.
        count: usize,
    },
}

/// One forest a task, in order of the tasks' first appearance.
///
/// # Errors
/// [`ForestError`], for the first task that has one.
///
/// # Example
/// ```
/// use tree_pack::{Trajectory, build_forests};
///
/// let trajectories = [vec![1, 2, 3, 4], vec![1, 2, 3, 5], vec![1, 2, 6, 7]]
///     .map(|tokens| Trajectory::new("task", "run", tokens, vec![true; 4]));
/// let forest = &build_forests(&trajectories)?[0];
/// assert_eq!(forest.tokens(), [1, 2, 3, 4, 5, 6, 7]);
/// assert_eq!(forest.rows_of(2), [0, 1, 5, 6]);
/// # Ok::<(), tree_pack::ForestError>(())
/// ```
pub fn build_forests(trajectories: &[Trajectory]) -> Result<Vec<PrefixForest>, ForestError> {
    each_task(trajectories, |task| PrefixForest::merge(trajectories, task))
}

/// As [`build_forests`], with nothing shared: each trajectory is a tree of its own.
///
/// # Errors
/// [`ForestError`], for the first task that has one.
pub fn flat_forests(trajectories: &[Trajectory]) -> Result<Vec<PrefixForest>, ForestError> {
    each_task(trajectories, |task| {
        PrefixForest::merge(trajectories, task)?.flatten(trajectories)
    })
}

fn each_task(
    trajectories: &[Trajectory],
    build: impl Fn(Vec<u32>) -> Result<PrefixForest, ForestError> + Sync + Send,
) -> Result<Vec<PrefixForest>, ForestError> {
    check_count(trajectories)?;
    let mut task_indices = FxHashMap::default();
    let mut tasks: Vec<Vec<u32>> = Vec::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        let task = *task_indices
            .entry(trajectory.task_id.as_str())
            .or_insert_with(|| {
                tasks.push(Vec::new());
                tasks.len() - 1
            });
        tasks[task].push(index as u32);
    }
    // Collecting the results first makes the reported error that of the first task.
    let forests: Vec<_> = tasks.into_par_iter().map(build).collect();
    forests.into_iter().collect()
}

impl PrefixForest {
    /// The forest of trajectories that all belong to one task.
    ///
    /// # Errors
    /// [`ForestError`].
    pub fn build(trajectories: &[Trajectory]) -> Result<Self, ForestError> {
        check_count(trajectories)?;
        let first = trajectories.first().map(|first| &first.task_id);
        if let Some(index) = trajectories
            .iter()
            .position(|own| Some(&own.task_id) != first)
        {
            return Err(ForestError::SeveralTasks {
                task_id: trajectories[0].task_id.clone(),
                index,
                other_task_id: trajectories[index].task_id.clone(),
            });
        }
        Self::merge(trajectories, (0..trajectories.len() as u32).collect())
    }

    /// Name of the task.
    pub fn task_id(&self) -> &str {
        &self.task_id
    }

    /// Indices of the task's trajectories in the data set; where other methods take or return a
    /// trajectory's number, it is the index in this list.
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

    /// Whether every trajectory is a chain of its own.
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

    /// Number of trajectories through each node, equal ones included.
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

    /// Calls `visit(row, index)` for every trained token of a trajectory, `index` being that of
    /// the token in the trajectory.
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
                // The first token of a path is predicted by nothing.
                if position + offset > 0 {
                    visit(start + offset, position + offset);
                }
            }
        }
    }

    /// `[rows]` number of the first trajectory that trains the row's token, or [`NOBODY`].
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

    /// Each trajectory as a chain of its own.
    fn flatten(self, trajectories: &[Trajectory]) -> Result<Self, ForestError> {
        let rows: usize = self
            .trajectories
            .iter()
            .map(|&index| trajectories[index as usize].len())
            .sum();
        check_rows(&self.task_id, rows)?;
        let mut flat = Self {
            task_id: self.task_id.clone(),
            trajectories: self.trajectories.clone(),
            tokens: Vec::with_capacity(rows),
            nodes: Vec::with_capacity(self.trajectories.len()),
            trees: Vec::with_capacity(self.trajectories.len()),
            end_nodes: (0..self.trajectories.len() as u32).collect(),
            merged: None,
        };
        for (number, &index) in (0u32..).zip(&self.trajectories) {
            let start = flat.tokens.len() as u32;
            flat.tokens
                .extend_from_slice(&trajectories[index as usize].tokens);
            let end = flat.tokens.len() as u32;
            flat.nodes.push(Node {
                start,
                end,
                subtree_end: end,
                subtree_end_node: number + 1,
                parent: None,
                position: 0,
                source: number,
            });
            flat.trees.push(Tree {
                nodes: number..number + 1,
                rows: start..end,
            });
        }
        flat.merged = Some(Box::new(self));
        Ok(flat)
    }

    fn merge(trajectories: &[Trajectory], task: Vec<u32>) -> Result<Self, ForestError> {
        let task_id = match task.first() {
            Some(&first) => trajectories[first as usize].task_id.clone(),
            None => String::new(),
        };
        let mut builder = Builder::new(task.len());
        for &index in &task {
            let trajectory = &trajectories[index as usize];
            trajectory
                .validate()
                .map_err(|error| ForestError::Trajectory {
                    index: index as usize,
                    task_id: trajectory.task_id.clone(),
                    rollout_id: trajectory.rollout_id.clone(),
                    error: Box::new(error),
                })?;
            check_rows(&task_id, trajectory.len())?;
            builder.insert(&trajectory.tokens);
            check_rows(&task_id, builder.rows())?;
        }
        Ok(builder.finish(task_id, task))
    }
}

fn check_count(trajectories: &[Trajectory]) -> Result<(), ForestError> {
    if trajectories.len() > MAX_ROWS {
        return Err(ForestError::TooLarge {
            task_id: trajectories[0].task_id.clone(),
            what: "trajectories",
            count: trajectories.len(),
        });
    }
    Ok(())
}

fn check_rows(task_id: &str, count: usize) -> Result<(), ForestError> {
    if count <= MAX_ROWS {
        return Ok(());
    }
    Err(ForestError::TooLarge {
        task_id: task_id.to_owned(),
        what: "rows",
        count,
    })
}
