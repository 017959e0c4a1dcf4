//! The input columns of a loss, with their checks.

use burn::tensor::{DType, Tensor};
use tree_pack::{LossForm, OccurrenceBatch};

use super::LossInputError;
use burn_tree_nn::TokenLogProbs;

/// Reads the columns of a batch in the dtype of its log-probabilities, as constants.
pub(super) struct Columns<'a> {
    occurrences: &'a OccurrenceBatch,
    dtype: DType,
}

impl<'a> Columns<'a> {
    /// Checks that there is one log-probability per occurrence, and that the occurrences were
    /// packed for the loss form `loss_form`. Occurrences packed for losses of trajectories serve
    /// all losses.
    pub(super) fn new(
        head: &TokenLogProbs,
        occurrences: &'a OccurrenceBatch,
        loss_form: LossForm,
    ) -> Result<Self, LossInputError> {
        let found = occurrences.loss_form;
        if !occurrences.is_empty() && ![loss_form, LossForm::PerTrajectory].contains(&found) {
            return Err(LossInputError::LossForm {
                found,
                expected: loss_form,
            });
        }
        Self::of_any_form(head, occurrences)
    }

    /// As [`Columns::new`], for a loss that accepts occurrences of every form.
    pub(super) fn of_any_form(
        head: &TokenLogProbs,
        occurrences: &'a OccurrenceBatch,
    ) -> Result<Self, LossInputError> {
        if let (Some(found), Some(expected)) = (head.batch(), occurrences.batch)
            && found != expected
        {
            return Err(LossInputError::OtherBatch);
        }
        let columns = Self {
            occurrences,
            dtype: head.log_probs.dtype(),
        };
        columns.length("log-probabilities", &head.log_probs)?;
        Ok(columns)
    }

    pub(super) fn weights(&self) -> Result<Tensor<1>, LossInputError> {
        self.constant("weights", &self.occurrences.weights)
    }

    pub(super) fn multiplicities(&self) -> Result<Tensor<1>, LossInputError> {
        self.constant("multiplicities", &self.occurrences.multiplicities)
    }

    pub(super) fn advantages(&self, needed_for: &'static str) -> Column {
        self.required("advantages", &self.occurrences.advantages, needed_for)
    }

    pub(super) fn old_log_probs(&self, needed_for: &'static str) -> Column {
        let column = &self.occurrences.old_log_probs;
        self.required("old log-probabilities", column, needed_for)
    }

    pub(super) fn ref_log_probs(&self, needed_for: &'static str) -> Column {
        let column = &self.occurrences.ref_log_probs;
        self.required("reference log-probabilities", column, needed_for)
    }

    pub(super) fn sampling_log_probs(&self, needed_for: &'static str) -> Column {
        let column = &self.occurrences.sampling_log_probs;
        self.required("sampling log-probabilities", column, needed_for)
    }

    fn required(
        &self,
        name: &'static str,
        column: &Option<Tensor<1>>,
        needed_for: &'static str,
    ) -> Column {
        let column = column.as_ref().ok_or(LossInputError::MissingColumn {
            column: name,
            needed_for,
        })?;
        self.constant(name, column)
    }

    /// A column with the length of the batch and at least the precision of the log-probabilities,
    /// without gradient.
    pub(super) fn constant(&self, name: &'static str, column: &Tensor<1>) -> Column {
        self.length(name, column)?;
        if self.dtype == DType::F64 && column.dtype() != DType::F64 {
            return Err(LossInputError::Precision {
                column: name,
                found: column.dtype(),
                expected: self.dtype,
            });
        }
        Ok(column.clone().inner().cast(self.dtype))
    }

    fn length(&self, name: &'static str, column: &Tensor<1>) -> Result<(), LossInputError> {
        let [found] = column.dims();
        let expected = self.occurrences.len();
        if found != expected {
            return Err(LossInputError::ColumnLength {
                column: name,
                found,
                expected,
            });
        }
        Ok(())
    }
}

type Column = Result<Tensor<1>, LossInputError>;

/// Checks that an option is a finite number in a range, which `expected` describes.
pub(super) fn check_option(
    option: &'static str,
    value: f64,
    holds: bool,
    expected: &'static str,
) -> Result<(), LossInputError> {
    match holds && value.is_finite() {
        true => Ok(()),
        false => Err(LossInputError::Option {
            option,
            value,
            expected,
        }),
    }
}
