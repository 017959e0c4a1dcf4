//! `Pack` -> Burn tensors.

use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor};

use crate::{Pack, TreeLayout};

/// Packs as Burn tensors: `B` rows of `N` tokens, short rows padded at the end.
#[derive(Clone, Debug)]
pub struct TreeBatch {
    /// `[B, N]` token ids, 0 in padding.
    pub tokens: Tensor<2, Int>,
    /// `[B, N]` depth on the path, 0 in padding.
    pub position_ids: Tensor<2, Int>,
    /// `[B, N]` row of the previous token on the path, -1 at roots and in padding.
    pub parents: Tensor<2, Int>,
    /// `[B, N]` first query row that sees the row as a key (its own index; 0 in padding).
    pub key_start: Tensor<2, Int>,
    /// `[B, N]` one past the last query row that sees the row as a key (0 in padding).
    pub key_end: Tensor<2, Int>,
    /// The predictions of all rows of the batch.
    pub occurrences: OccurrenceBatch,
    /// The layouts on the host, from which masks and plans are built.
    pub layouts: Arc<Vec<TreeLayout>>,
}

/// [`crate::Occurrences`] of a whole batch as tensors of length `n`, in ascending order of row.
#[derive(Clone, Debug)]
pub struct OccurrenceBatch {
    /// `[n]` row in the flattened `[B * N]` batch.
    pub rows: Tensor<1, Int>,
    /// `[n]` token ids.
    pub targets: Tensor<1, Int>,
    /// `[n]` coefficients in the loss of the step.
    pub weights: Tensor<1>,
    /// `[n]` trajectory index in the step.
    pub trajectories: Tensor<1, Int>,
    /// `[n]` advantages, if any.
    pub advantages: Option<Tensor<1>>,
    /// `[n]` old log-probabilities, if any.
    pub old_log_probs: Option<Tensor<1>>,
    /// `[n]` reference log-probabilities, if any.
    pub ref_log_probs: Option<Tensor<1>>,
    /// Host copy of `rows`, from which the head plans its projection.
    pub host_rows: Arc<Vec<u32>>,
}

impl TreeBatch {
    /// Uploads packs as one batch; the row length is the largest `padded_len`.
    pub fn new(packs: &[Pack], device: &Device) -> Self {
        todo!("{} {device:?}", packs.len())
    }
}
