//! Plans of the projection of rows onto the vocabulary, in chunks.

use std::ops::Range;

use burn::tensor::{DType, FloatDType};

use super::error::LmHeadError;
use crate::gather_rows::{GatherError, GatherPlan};
use burn_tree_kit::dtype::product_dtype;

/// Plan of one projection on the host: the distinct rows with predictions, the row of each
/// occurrence, the number of rows of logits `[rows, vocab]` that exist at a time, and the dtype of
/// the products.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LmHeadPlan {
    /// Distinct rows of the hidden states, ascending.
    gather: GatherPlan,
    /// For each occurrence, the index of its row in the distinct rows, ascending.
    slots: Vec<u32>,
    chunk_rows: Option<usize>,
    product: Option<FloatDType>,
    #[cfg(feature = "cubecl-backend")]
    pub(super) device_starts: super::kernels::StartsCache,
}

/// The gradients that a backward pass computes besides those of the hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadGradients {
    /// Whether to compute the gradient of the head.
    pub head: bool,
    /// Whether to include the gradients of the entropies.
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
    /// Plans the projection of the rows of `occurrence_rows` (ascending, each below `hidden_rows`),
    /// at most `chunk_rows` distinct rows at a time, or a default of the backend; the dtype of the
    /// products is `product`, or the wider dtype of the factors.
    pub(crate) fn new(
        occurrence_rows: &[u32],
        hidden_rows: usize,
        chunk_rows: Option<usize>,
        product: Option<FloatDType>,
    ) -> Result<Self, LmHeadError> {
        let too_many = LmHeadError::TooMany {
            rows: hidden_rows,
            occurrences: occurrence_rows.len(),
        };
        if occurrence_rows.len() > i32::MAX as usize {
            return Err(too_many);
        }
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
        let gather = GatherPlan::new(rows, hidden_rows).map_err(|error| match error {
            GatherError::Index {
                position, index, ..
            } => LmHeadError::RowOutOfRange {
                occurrence: slots.partition_point(|&slot| (slot as usize) < position),
                row: index,
                hidden_rows,
            },
            _ => too_many,
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

    /// Number of distinct rows at a time, if the caller has set it.
    #[cfg(feature = "cubecl-backend")]
    pub(crate) fn chunk_rows(&self) -> Option<usize> {
        self.chunk_rows
    }

    /// The dtype in which states and head are multiplied.
    pub(crate) fn product_dtype(&self, hidden: DType, head: DType) -> FloatDType {
        self.product.unwrap_or_else(|| product_dtype(hidden, head))
    }

    /// Chunks of the number of rows that the caller has set, otherwise of `rows`.
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

    /// For each distinct row, its first occurrence; the number of occurrences at the end.
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
