//! Errors of building forests.

use super::node::MAX_ROWS;
use crate::trajectory::FieldError;

/// Errors of building a forest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForestError {
    /// A trajectory does not pass [`crate::Trajectory::validate`].
    #[error("trajectory {index} (task {task_id:?}, rollout {rollout_id:?}): {error}")]
    Trajectory {
        /// Index in the data set.
        index: usize,
        /// Its task.
        task_id: String,
        /// Its rollout.
        rollout_id: String,
        /// The invalid field.
        #[source]
        error: Box<FieldError>,
    },
    /// The trajectories belong to several tasks.
    #[error("trajectory 0 is of task {task_id:?}, but trajectory {index} of {other_task_id:?}")]
    SeveralTasks {
        /// The task of the first trajectory.
        task_id: String,
        /// Index of the first one of another task.
        index: usize,
        /// The other task.
        other_task_id: String,
    },
    /// A task has more rows, or the data set more trajectories, than 32-bit indices allow.
    #[error("task {task_id:?}: {count} {what}, at most {MAX_ROWS} are supported")]
    TooLarge {
        /// The task.
        task_id: String,
        /// What exceeds the limit.
        what: &'static str,
        /// The number of them.
        count: usize,
    },
}
