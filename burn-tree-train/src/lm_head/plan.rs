//! Which rows are projected on the vocabulary, and in which chunks.

use std::ops::Range;

/// Host-side plan of one projection: the distinct rows that predict something, which of them each
/// occurrence reads, and the split into chunks whose `[rows, vocab]` logits are alive together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LmHeadPlan {
    /// Distinct rows, ascending.
    rows: Vec<u32>,
    /// For each occurrence the index into `rows`, ascending.
    slots: Vec<u32>,
    /// Number of rows of the hidden states.
    hidden_rows: usize,
    chunks: Vec<LmHeadChunk>,
}

/// One chunk: `slots` is a range of [`LmHeadPlan::rows`], `occurrences` the occurrences that read
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LmHeadChunk {
    pub(crate) slots: Range<usize>,
    pub(crate) occurrences: Range<usize>,
}

impl LmHeadPlan {
    /// Plans the projection of the rows of `occurrence_rows` (ascending, each below
    /// `hidden_rows`), at most `chunk_rows` distinct rows at a time.
    pub(crate) fn new(
        occurrence_rows: &[u32],
        hidden_rows: usize,
        chunk_rows: usize,
    ) -> Result<Self, LmHeadError> {
        let mut rows: Vec<u32> = Vec::new();
        let mut slots = Vec::with_capacity(occurrence_rows.len());
        for (occurrence, &row) in occurrence_rows.iter().enumerate() {
            if row as usize >= hidden_rows {
                return Err(LmHeadError::RowOutOfRange {
                    occurrence,
                    row,
                    hidden_rows,
                });
            }
            match rows.last() {
                Some(&last) if last == row => {}
                Some(&last) if last > row => {
                    return Err(LmHeadError::RowsNotAscending {
                        occurrence,
                        row,
                        previous: last,
                    });
                }
                _ => rows.push(row),
            }
            slots.push(rows.len() as u32 - 1);
        }
        let mut chunks = Vec::new();
        let mut next = 0;
        for start in (0..rows.len()).step_by(chunk_rows.max(1)) {
            let end = (start + chunk_rows.max(1)).min(rows.len());
            let first = next;
            while next < slots.len() && (slots[next] as usize) < end {
                next += 1;
            }
            chunks.push(LmHeadChunk {
                slots: start..end,
                occurrences: first..next,
            });
        }
        Ok(Self {
            rows,
            slots,
            hidden_rows,
            chunks,
        })
    }

    /// Number of distinct rows that are projected.
    pub fn projected_rows(&self) -> usize {
        self.rows.len()
    }

    /// Number of occurrences.
    pub fn occurrences(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn rows(&self) -> &[u32] {
        &self.rows
    }

    pub(crate) fn slots(&self) -> &[u32] {
        &self.slots
    }

    pub(crate) fn chunks(&self) -> &[LmHeadChunk] {
        &self.chunks
    }

    /// For each row of the hidden states its index in `rows`, or `rows.len()` if not projected.
    pub(crate) fn slot_of_row(&self) -> Vec<u32> {
        let mut slot_of_row = vec![self.rows.len() as u32; self.hidden_rows];
        for (slot, &row) in self.rows.iter().enumerate() {
            slot_of_row[row as usize] = slot as u32;
        }
        slot_of_row
    }
}

/// Arguments of [`crate::token_log_probs`] that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LmHeadError {
    /// The hidden size of states and head differ.
    #[error("the hidden states have {hidden} features, the head weight {head}")]
    HiddenSize {
        /// Features of the hidden states.
        hidden: usize,
        /// Features of the head weight.
        head: usize,
    },
    /// An occurrence names a row that does not exist.
    #[error("occurrence {occurrence} reads row {row}, but there are {hidden_rows} rows")]
    RowOutOfRange {
        /// Index of the occurrence.
        occurrence: usize,
        /// Its row.
        row: u32,
        /// Number of rows of the hidden states.
        hidden_rows: usize,
    },
    /// Occurrences must come in ascending order of row.
    #[error("occurrence {occurrence} reads row {row} after row {previous}; rows must ascend")]
    RowsNotAscending {
        /// Index of the occurrence.
        occurrence: usize,
        /// Its row.
        row: u32,
        /// Row of the occurrence before it.
        previous: u32,
    },
    /// Columns of an occurrence batch differ in length.
    #[error("{rows} rows but {targets} targets")]
    Columns {
        /// Number of rows.
        rows: usize,
        /// Number of targets.
        targets: usize,
    },
    /// `chunk_rows * vocab` does not fit the index type.
    #[error("chunks of {chunk_rows} rows x {vocab} tokens exceed 2^31 - 1 logits")]
    ChunkTooLarge {
        /// Rows of a chunk.
        chunk_rows: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
}
