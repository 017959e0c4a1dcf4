//! The inputs of the loss that occurrences carry.

use crate::trajectory::Trajectory;

/// Which inputs the occurrences of a step carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inputs {
    pub advantage: bool,
    pub old_log_prob: bool,
    pub ref_log_prob: bool,
    pub sampling_log_prob: bool,
}

/// The value of each input of an occurrence, `None` for those not carried.
pub(crate) type InputValues = [Option<f32>; 4];

/// Names of [`InputValues`], as in JSON.
pub(crate) const INPUT_NAMES: [&str; 4] = ["advantage", "old_logps", "ref_logps", "sampling_logps"];

impl Inputs {
    pub(crate) fn of(self, trajectory: &Trajectory, index: usize) -> InputValues {
        [
            self.advantage
                .then(|| trajectory.advantage_of(index))
                .flatten(),
            self.old_log_prob
                .then(|| trajectory.old_log_prob_of(index))
                .flatten(),
            self.ref_log_prob
                .then(|| trajectory.ref_log_prob_of(index))
                .flatten(),
            self.sampling_log_prob
                .then(|| trajectory.sampling_log_prob_of(index))
                .flatten(),
        ]
    }
}
