//! The original predictions of a pack, as parallel columns.

/// Original predictions (or, where the objective merges them, one entry per distinct
/// `(row, target)`), stored as columns of equal length.
///
/// The loss of an optimizer step is `sum_i weights[i] * nll_i` over all its packs: the
/// denominator of the aggregation is already inside `weights`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Occurrences {
    /// Row whose hidden state makes the prediction.
    pub rows: Vec<u32>,
    /// Token id predicted.
    pub targets: Vec<u32>,
    /// Coefficient of this negative log-likelihood in the loss of the whole step.
    pub weights: Vec<f64>,
    /// Index of the trajectory in the step (the first one, where several are merged).
    pub trajectories: Vec<u32>,
    /// Index of the target in its trajectory.
    pub token_indices: Vec<u32>,
    /// Advantage, if the trajectories carry one.
    pub advantages: Option<Vec<f32>>,
    /// Log-probability under the policy that sampled the trajectory, if given.
    pub old_log_probs: Option<Vec<f32>>,
    /// Log-probability under the reference policy, if given.
    pub ref_log_probs: Option<Vec<f32>>,
}
