//! What can be wrong with the arguments of an objective.

use burn::tensor::DType;
use tree_pack::LossForm;

/// Arguments of an objective that do not fit together.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectiveInputError {
    /// An option is out of range.
    #[error("{option} is {value}, expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: f64,
        /// What was expected.
        expected: &'static str,
    },
    /// The step was packed for another loss: occurrences were merged, or lack what this one needs.
    #[error(
        "the occurrences were made for the loss form {found:?}, expected {expected:?}: see PackOptions::loss"
    )]
    LossForm {
        /// That of the occurrences.
        found: LossForm,
        /// That of the objective.
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
        /// What needs it.
        needed_for: &'static str,
    },
    /// The entropy was not computed.
    #[error("the log-probabilities come without {what}: set LmHeadOptions::entropy to {setting}")]
    MissingEntropy {
        /// What is missing.
        what: &'static str,
        /// The setting that brings it.
        setting: &'static str,
    },
    /// A column is too short or too long.
    #[error("{column}: got {found} entries, expected {expected}, one for each occurrence")]
    ColumnLength {
        /// The column.
        column: &'static str,
        /// Its length.
        found: usize,
        /// Number of occurrences.
        expected: usize,
    },
    /// The log-probabilities were computed for other occurrences than these.
    #[error("the log-probabilities are those of another batch than the occurrences")]
    OtherBatch,
    /// The columns are narrower than the log-probabilities.
    #[error(
        "{column} are in {found:?}, which rounds them, but the log-probabilities in {expected:?}: \
         make the batch with TreeBatch::with_dtype"
    )]
    Precision {
        /// The column.
        column: &'static str,
        /// Its dtype.
        found: DType,
        /// That of the log-probabilities.
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
    /// A loss of whole trajectories was asked for before all their predictions were collected.
    #[error(
        "trajectory {trajectory} of the step: {collected} of its {trained} trained predictions \
         have been collected. Each pack is to be collected once, before the loss of any pack that \
         shares a trajectory (or pair) with it"
    )]
    IncompleteTrajectory {
        /// Index of the trajectory in the step.
        trajectory: usize,
        /// Predictions seen so far.
        collected: u32,
        /// Predictions that it has.
        trained: u32,
    },
    /// Only one trajectory of a pair is in the step.
    #[error(
        "of the pair {chosen} over {rejected} (indices in the data set), only one is in the step"
    )]
    PairOutsideStep {
        /// Index in the data set of the preferred trajectory.
        chosen: usize,
        /// Index in the data set of the other one.
        rejected: usize,
    },
    /// A pair that says nothing.
    #[error("the pair {chosen} over {rejected} (indices in the data set): {problem}")]
    Pair {
        /// Index in the data set of the preferred trajectory.
        chosen: usize,
        /// Index in the data set of the other one.
        rejected: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The step has no pair.
    #[error("no pair of trajectories of the step was given")]
    NoPairs,
}
