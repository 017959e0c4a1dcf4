//! Errors of packing a step.

use std::fmt;

use crate::forest::MAX_ROWS;
use crate::objective::ObjectiveError;

/// Names one occurrence in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OccurrenceName {
    /// Index of the trajectory in the data set.
    pub data_index: usize,
    /// Its rollout.
    pub rollout_id: String,
    /// Its segment of the rollout.
    pub segment: u32,
    /// Index of the token in the trajectory.
    pub token_index: usize,
}

impl fmt::Display for OccurrenceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            data_index,
            rollout_id,
            segment,
            token_index,
        } = self;
        write!(
            formatter,
            "token {token_index} of trajectory {data_index} (rollout {rollout_id:?}, segment \
             {segment})"
        )
    }
}

/// Why a step cannot be packed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// An option is out of range.
    #[error("{option} is {value}, expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: usize,
        /// What was expected.
        expected: String,
    },
    /// A tree has more tokens than the budget.
    #[error(
        "task {task_id:?}: its tree {tree} has {tokens} tokens ({trajectories} trajectories, \
         longest path {longest_path}), over the budget of {token_budget} tokens a pack: raise the \
         budget, or let PackOptions::partitioning cut it"
    )]
    TreeOverBudget {
        /// The task.
        task_id: String,
        /// Index of the tree in the task's forest.
        tree: usize,
        /// Rows of the tree.
        tokens: usize,
        /// Number of trajectories in the tree.
        trajectories: usize,
        /// Tokens of its longest trajectory.
        longest_path: usize,
        /// The budget.
        token_budget: usize,
    },
    /// [`crate::Partitioning::RepeatedPrefixes`] does not cut paths, and a path has more tokens
    /// than the budget.
    #[error(
        "task {task_id:?}: a path of its tree {tree} has {tokens} tokens, over the budget of \
         {token_budget} tokens a pack; only a partitioning with gateways cuts paths"
    )]
    PathOverBudget {
        /// The task.
        task_id: String,
        /// Index of the tree in the task's forest.
        tree: usize,
        /// Tokens of the first path that does not fit.
        tokens: usize,
        /// The budget.
        token_budget: usize,
    },
    /// The step has more trajectories than 32-bit indices allow.
    #[error("the step has {count} {what}, at most {MAX_ROWS} are supported")]
    TooLarge {
        /// What exceeds the limit.
        what: &'static str,
        /// The number of them.
        count: usize,
    },
    /// A forest was not built from these trajectories.
    #[error(
        "the forest of task {task_id:?} was not built from these trajectories: trajectory {index} \
         differs"
    )]
    ForeignForest {
        /// The task.
        task_id: String,
        /// Index in the data set at which they differ.
        index: usize,
    },
    /// A trajectory lacks an input that the loss requires or that other trajectories of the step
    /// have.
    #[error(
        "trajectory {index} (task {task_id:?}, rollout {rollout_id:?}) has no {input}, which {why}"
    )]
    MissingInput {
        /// Index in the data set.
        index: usize,
        /// Its task.
        task_id: String,
        /// Its rollout.
        rollout_id: String,
        /// The input.
        input: &'static str,
        /// Why the input is needed.
        why: &'static str,
    },
    /// [`crate::Objective::PerPath`] merges occurrences, but the loss distinguishes them.
    #[error(
        "task {task_id:?}: {first} and {second} cannot be merged: {difference}. Use the objective \
         PerOccurrence"
    )]
    NotMergeable {
        /// The task.
        task_id: String,
        /// An occurrence.
        first: Box<OccurrenceName>,
        /// The first occurrence that shares its row and target, but not its inputs.
        second: Box<OccurrenceName>,
        /// How they differ.
        difference: String,
    },
    /// The objective or aggregation is not defined for the step.
    #[error(transparent)]
    Objective(#[from] ObjectiveError),
}
