//! The original predictions of a pack, as parallel columns.

use super::inputs::{InputValues, Inputs};
use crate::forest::NOBODY;
use crate::objective::LossForm;

/// Original predictions (or, where the objective merges them, one entry per distinct
/// `(row, target)`), stored as columns of equal length in ascending order of row.
///
/// The loss of an optimizer step is `sum_i weights[i] * nll_i` over all its packs: `weights`
/// already contain the denominator of the aggregation and, with [`LossForm::AdvantageWeighted`],
/// the advantage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Occurrences {
    /// The loss form of the step, which determines what was merged.
    pub loss_form: LossForm,
    /// Row whose hidden state makes the prediction.
    pub rows: Vec<u32>,
    /// Token id predicted.
    pub targets: Vec<u32>,
    /// Coefficient of this negative log-likelihood in the loss of the whole step.
    pub weights: Vec<f64>,
    /// Number of original predictions in the entry: 1 unless several are merged. With
    /// [`crate::Objective::Unique`] a tree token is one prediction.
    pub multiplicities: Vec<u32>,
    /// Index of the trajectory in the step (the first one if several are merged).
    pub trajectories: Vec<u32>,
    /// Index of the target in its trajectory.
    pub token_indices: Vec<u32>,
    /// Advantage, if the loss uses inputs and the trajectories carry one.
    pub advantages: Option<Vec<f32>>,
    /// Log-probability under the policy before the updates, if used and given.
    pub old_log_probs: Option<Vec<f32>>,
    /// Log-probability under the reference policy, if used and given.
    pub ref_log_probs: Option<Vec<f32>>,
    /// Log-probability that the inference engine reported, if used and given.
    pub sampling_log_probs: Option<Vec<f32>>,
}

impl Occurrences {
    /// Number of occurrences.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nothing is trained.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Number of rows that predict something.
    pub fn distinct_rows(&self) -> usize {
        let repeated = self.rows.windows(2).filter(|pair| pair[0] == pair[1]);
        self.rows.len() - repeated.count()
    }

    pub(crate) fn new(loss_form: LossForm, inputs: Inputs) -> Self {
        Self {
            loss_form,
            advantages: inputs.advantage.then(Vec::new),
            old_log_probs: inputs.old_log_prob.then(Vec::new),
            ref_log_probs: inputs.ref_log_prob.then(Vec::new),
            sampling_log_probs: inputs.sampling_log_prob.then(Vec::new),
            ..Self::default()
        }
    }

    /// Empty columns, with the same optional columns.
    pub(crate) fn without_entries(&self) -> Self {
        let like = |column: &Option<Vec<f32>>| column.as_ref().map(|_| Vec::new());
        Self {
            loss_form: self.loss_form,
            advantages: like(&self.advantages),
            old_log_probs: like(&self.old_log_probs),
            ref_log_probs: like(&self.ref_log_probs),
            sampling_log_probs: like(&self.sampling_log_probs),
            ..Self::default()
        }
    }

    /// Appends an entry of `other`, which has the same columns, with another row.
    pub(crate) fn push_entry_of(&mut self, other: &Self, entry: usize, row: u32) {
        self.rows.push(row);
        self.targets.push(other.targets[entry]);
        self.weights.push(other.weights[entry]);
        self.multiplicities.push(other.multiplicities[entry]);
        self.trajectories.push(other.trajectories[entry]);
        self.token_indices.push(other.token_indices[entry]);
        for (column, values) in [
            (&mut self.advantages, &other.advantages),
            (&mut self.old_log_probs, &other.old_log_probs),
            (&mut self.ref_log_probs, &other.ref_log_probs),
            (&mut self.sampling_log_probs, &other.sampling_log_probs),
        ] {
            if let (Some(column), Some(values)) = (column, values) {
                column.push(values[entry]);
            }
        }
    }

    /// Extends all columns that are filled in place to the length of `rows`.
    pub(crate) fn fill_up(&mut self) {
        let length = self.rows.len();
        self.weights.resize(length, 0.0);
        self.multiplicities.resize(length, 0);
        self.trajectories.resize(length, NOBODY);
        self.token_indices.resize(length, 0);
        let inputs = [
            &mut self.advantages,
            &mut self.old_log_probs,
            &mut self.ref_log_probs,
            &mut self.sampling_log_probs,
        ];
        for column in inputs.into_iter().flatten() {
            column.resize(length, 0.0);
        }
    }
    /// Sets the inputs of an entry, in the columns that are carried.
    pub(crate) fn set_inputs(&mut self, entry: usize, values: InputValues) {
        let columns = [
            &mut self.advantages,
            &mut self.old_log_probs,
            &mut self.ref_log_probs,
            &mut self.sampling_log_probs,
        ];
        for (column, value) in columns.into_iter().zip(values) {
            if let (Some(column), Some(value)) = (column, value) {
                column[entry] = value;
            }
        }
    }
}
