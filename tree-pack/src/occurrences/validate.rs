//! Checks of occurrences against each other and their layout.

use super::columns::Occurrences;
use crate::trajectory::MAX_TOKEN_ID;

/// A column of occurrences that is inconsistent with the others or with the layout of its pack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("occurrences: {column}: got {value}, expected {expected}")]
pub struct ColumnError {
    /// The column.
    pub column: &'static str,
    /// What was found.
    pub value: String,
    /// What was expected.
    pub expected: String,
}

impl Occurrences {
    /// Checks that all columns have the same length, that rows ascend and are below `rows`, the
    /// number of rows of the layout, and that targets are token ids. Takes linear time.
    ///
    /// # Errors
    /// [`ColumnError`] for the first inconsistent column.
    pub fn validate(&self, rows: usize) -> Result<(), ColumnError> {
        self.validate_lengths()?;
        let error = |column, value: u32, entry: usize, expected: String| {
            Err(ColumnError {
                column,
                value: format!("{value} at entry {entry}"),
                expected,
            })
        };
        let mut last = 0;
        for (entry, &row) in self.rows.iter().enumerate() {
            if row as usize >= rows {
                return error("rows", row, entry, format!("a row below {rows}"));
            }
            if row < last {
                let expected = format!("at least {last}, the row before: rows ascend");
                return error("rows", row, entry, expected);
            }
            last = row;
        }
        match self.targets.iter().position(|&token| token > MAX_TOKEN_ID) {
            Some(entry) => {
                let expected = format!("a token id of at most {MAX_TOKEN_ID}");
                error("targets", self.targets[entry], entry, expected)
            }
            None => Ok(()),
        }
    }

    fn validate_lengths(&self) -> Result<(), ColumnError> {
        let optional = |column: &Option<Vec<f32>>| column.as_ref().map(Vec::len);
        for (column, length) in [
            ("targets", Some(self.targets.len())),
            ("weights", Some(self.weights.len())),
            ("multiplicities", Some(self.multiplicities.len())),
            ("trajectories", Some(self.trajectories.len())),
            ("token_indices", Some(self.token_indices.len())),
            ("advantages", optional(&self.advantages)),
            ("old_log_probs", optional(&self.old_log_probs)),
            ("ref_log_probs", optional(&self.ref_log_probs)),
            ("sampling_log_probs", optional(&self.sampling_log_probs)),
        ] {
            if length.is_some_and(|length| length != self.len()) {
                return Err(ColumnError {
                    column,
                    value: format!("{} entries", length.unwrap_or_default()),
                    expected: format!("{}, as many as rows", self.len()),
                });
            }
        }
        Ok(())
    }
}
