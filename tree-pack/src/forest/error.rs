//! Errors of building forests.

use super::node::MAX_ROWS;
use crate::trajectory::FieldError;

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
