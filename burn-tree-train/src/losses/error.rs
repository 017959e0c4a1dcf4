//! Errors in the arguments of a loss.

use burn::tensor::DType;
use tree_pack::LossForm;

/// Inconsistent arguments of a loss.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LossInputError {
    /// An option is out of range.
    #[error("{option} is {value}, expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// The value.
        value: f64,
        /// The valid range.
        expected: &'static str,
    },
    /// The step was packed for another loss: occurrences were merged, or lack columns of this loss.
    #[error(
        "the occurrences were packed for the loss form {found:?}, expected {expected:?}: set \
         PackOptions::loss"
    )]
    LossForm {
        /// The loss form of the occurrences.
        found: LossForm,
        /// The loss form that is needed.
        expected: LossForm,
    },
    /// The occurrences lack a column.
    #[error(
        "the occurrences have no {column}, needed for {needed_for}. Trajectories must have them \
         before they are packed; log-probabilities can also be set after a forward pass over the \
         same packs"
    )]
    MissingColumn {
        /// The column.
        column: &'static str,
        /// The loss or option that needs it.
        needed_for: &'static str,
    },
    /// The entropy was not computed.
    #[error("the log-probabilities lack {what}: set LmHeadOptions::entropy to {setting}")]
    MissingEntropy {
        /// What is missing.
        what: &'static str,
        /// The setting that provides it.
        setting: &'static str,
    },
    /// A column has the wrong length.
    #[error("{column}: got {found} entries, expected {expected}, one for each occurrence")]
    ColumnLength {
        /// The column.
        column: &'static str,
        /// The length.
        found: usize,
        /// Number of occurrences.
        expected: usize,
    },
    /// The log-probabilities were computed for another batch of occurrences.
    #[error("the log-probabilities and the occurrences are from different batches")]
    OtherBatch,
    /// A column has less precision than the log-probabilities.
    #[error(
        "{column} are {found:?}, which rounds them, but the log-probabilities are {expected:?}: \
         create the batch with TreeBatch::with_dtype"
    )]
    Precision {
        /// The column.
        column: &'static str,
        /// The dtype of the column.
        found: DType,
        /// The dtype of the log-probabilities.
        expected: DType,
    },
    /// An occurrence belongs to no trajectory of the step.
    #[error("an occurrence belongs to trajectory {trajectory}, but the step has {trajectories}")]
    ForeignTrajectory {
        /// The trajectory.
        trajectory: u32,
        /// Number of trajectories of the step.
        trajectories: usize,
    },
    /// A trajectory loss was computed before all predictions of the trajectory were collected.
    #[error(
        "trajectory {trajectory} of the step: {collected} of its {trained} trained predictions \
         have been collected. Collect each pack once, before the loss of any pack that shares a \
         trajectory (or pair) with it"
    )]
    IncompleteTrajectory {
        /// Index of the trajectory in the step.
        trajectory: usize,
        /// Predictions seen so far.
        collected: u32,
        /// Predictions of the trajectory.
        trained: u32,
    },
    /// Only one trajectory of a pair is in the step.
    #[error(
        "of the pair {chosen} over {rejected} (indices in the data set), only one is in the step"
    )]
    PairOutsideStep {
        /// Index in the data set of the preferred trajectory.
        chosen: usize,
        /// Index in the data set of the rejected trajectory.
        rejected: usize,
    },
    /// An invalid pair.
    #[error("the pair {chosen} over {rejected} (indices in the data set): {problem}")]
    Pair {
        /// Index in the data set of the preferred trajectory.
        chosen: usize,
        /// Index in the data set of the rejected trajectory.
        rejected: usize,
        /// The problem.
        problem: &'static str,
    },
    /// The step has no pair.
    #[error("no pair of trajectories of the step was given")]
    NoPairs,
}
