//! What can be wrong with a step.

use std::fmt;

use crate::forest::MAX_ROWS;
use crate::objective::ObjectiveError;

/// One occurrence, in words.
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
    /// A tree has more tokens than fit a pack.
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
    /// [`crate::Partitioning::RepeatedPrefixes`] keeps paths whole, and one does not fit a pack.
    #[error(
        "task {task_id:?}: a path of its tree {tree} has {tokens} tokens, over the budget of \
         {token_budget} tokens a pack; only parts with gateways cut paths"
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
    /// The step has more tokens or trajectories than can be counted.
    #[error("the step has {count} {what}, at most {MAX_ROWS} are supported")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        count: usize,
    },
    /// A forest was not built from these trajectories.
    #[error("the forest of task {task_id:?} does not belong to these trajectories: see {index}")]
    ForeignForest {
        /// The task.
        task_id: String,
        /// Index in the data set at which they differ.
        index: usize,
    },
    /// An input is given for some trajectories of the step and not for others, or is needed.
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
        /// Who needs it.
        why: &'static str,
    },
    /// [`crate::Objective::PerPath`] merges occurrences, but the loss tells them apart.
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
        /// In what they differ.
        difference: String,
    },
    /// The objective cannot be used.
    #[error(transparent)]
    Objective(#[from] ObjectiveError),
}
