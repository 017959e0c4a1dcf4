//! Which rows are projected on the vocabulary, and in which chunks.

use std::ops::Range;

use burn::tensor::{DType, FloatDType};

use crate::gather_rows::GatherPlan;
use burn_tree_kit::dtype::product_dtype;

/// Host-side plan of one projection: the distinct rows that predict something, which of them each
/// occurrence reads, how many `[rows, vocab]` logits are alive together, and the dtype of the
/// products.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LmHeadPlan {
    /// Distinct rows, ascending, out of those of the hidden states.
    gather: GatherPlan,
    /// For each occurrence the index into the distinct rows, ascending.
    slots: Vec<u32>,
    chunk_rows: Option<usize>,
    product: Option<FloatDType>,
    #[cfg(feature = "cubecl-backend")]
    pub(super) device_starts: super::kernel::StartsCache,
}

/// Which gradients a backward pass computes besides that of the hidden states by the
/// log-probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadGradients {
    /// That of the head.
    pub head: bool,
    /// Those by the entropies.
    pub entropy: bool,
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
    /// `hidden_rows`), at most `chunk_rows` distinct rows at a time, or as many as suit the
    /// backend; products in dtype `product`, or in the wider one of the factors'.
    pub(crate) fn new(
        occurrence_rows: &[u32],
        hidden_rows: usize,
        chunk_rows: Option<usize>,
        product: Option<FloatDType>,
    ) -> Result<Self, LmHeadError> {
        let mut rows: Vec<u32> = Vec::new();
        let mut slots = Vec::with_capacity(occurrence_rows.len());
        for (occurrence, &row) in occurrence_rows.iter().enumerate() {
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
        let gather =
            GatherPlan::new(rows, hidden_rows).map_err(|error| LmHeadError::RowOutOfRange {
                occurrence: slots.partition_point(|&slot| (slot as usize) < error.position),
                row: error.index,
                hidden_rows,
            })?;
        Ok(Self {
            gather,
            slots,
            chunk_rows,
            product,
            #[cfg(feature = "cubecl-backend")]
            device_starts: Default::default(),
        })
    }

    /// Number of distinct rows that are projected.
    pub fn projected_rows(&self) -> usize {
        self.rows().len()
    }

    /// Number of occurrences.
    pub fn occurrences(&self) -> usize {
        self.slots.len()
    }

    /// The gather of the distinct rows out of the hidden states.
    pub(crate) fn gather(&self) -> &GatherPlan {
        &self.gather
    }

    pub(crate) fn rows(&self) -> &[u32] {
        self.gather.indices()
    }

    pub(crate) fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Distinct rows at a time, if the caller has chosen.
    #[cfg(feature = "cubecl-backend")]
    pub(crate) fn chunk_rows(&self) -> Option<usize> {
        self.chunk_rows
    }

    /// The dtype in which states and head are multiplied.
    pub(crate) fn product_dtype(&self, hidden: DType, head: DType) -> FloatDType {
        self.product.unwrap_or_else(|| product_dtype(hidden, head))
    }

    /// Chunks of the number of rows that the caller has chosen, or else of `rows`.
    pub(crate) fn chunks(&self, rows: usize) -> Vec<LmHeadChunk> {
        let rows = self.chunk_rows.unwrap_or(rows);
        let mut next = 0;
        (0..self.projected_rows())
            .step_by(rows)
            .map(|start| {
                let end = (start + rows).min(self.projected_rows());
                let first = next;
                next = self.slots.partition_point(|&slot| (slot as usize) < end);
                LmHeadChunk {
                    slots: start..end,
                    occurrences: first..next,
                }
            })
            .collect()
    }

    /// For each distinct row the first of its occurrences, and their number at the end.
    pub(super) fn occurrence_starts(&self) -> Vec<u32> {
        let mut starts = vec![0; self.projected_rows() + 1];
        for &slot in &self.slots {
            starts[slot as usize + 1] += 1;
        }
        for slot in 1..starts.len() {
            starts[slot] += starts[slot - 1];
        }
        starts
    }
}

/// Arguments of [`crate::token_log_probs`] that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LmHeadError {
    /// The occurrences are not those of the batch that the blocks computed.
    #[error("the occurrences are those of another batch than the context's")]
    OtherBatch,
    /// The hidden states are not those of the batch.
    #[error("the hidden states have [B, N] = {found:?} rows, expected {expected:?} as the batch")]
    Rows {
        /// `[B, N]` of the hidden states.
        found: [usize; 2],
        /// `[B, N]` of the batch that the occurrences are of.
        expected: [usize; 2],
    },
    /// A target that the head does not have.
    #[error(
        "occurrence {occurrence} has target {target}, expected an id below {vocab}, the rows of the \
         head weight [vocab, hidden]"
    )]
    Target {
        /// Index of the occurrence.
        occurrence: usize,
        /// Its target.
        target: u32,
        /// Rows of the head weight.
        vocab: usize,
    },
    /// The hidden size of states and head differ.
    #[error(
        "the hidden states have {hidden} features, the head weight {head}, expected [vocab, hidden] \
         (a Burn Linear keeps [hidden, vocab]: transpose it)"
    )]
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
