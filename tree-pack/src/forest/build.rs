//! Builds forests from trajectories.

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::builder::Builder;
use super::error::ForestError;
use super::node::{MAX_ROWS, Node, Tree};
use super::prefix_forest::PrefixForest;
use crate::trajectory::Trajectory;

/// Builds one forest per task, in order of the tasks' first appearance.
///
/// # Errors
/// [`ForestError`] of the first task that has one.
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

/// As [`build_forests`], without sharing: each trajectory is a separate tree.
///
/// # Errors
/// [`ForestError`] of the first task that has one.
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
    /// Builds the forest of trajectories that all belong to one task.
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

    /// Makes each trajectory a separate chain.
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
