//! Packs as Burn tensors.

use std::sync::Arc;

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

use super::check::{check, check_beginnings};
use super::error::BatchError;
use super::occurrences::{OccurrenceBatch, tensor_bytes};
use crate::ids::BatchId;
use crate::index_memory::IndexMemory;
use crate::layout::TreeLayout;
use crate::packs::Pack;
use crate::vocabulary::{TokenPlace, VocabularyError, first_outside};

/// Packs as Burn tensors: `B` rows of `N` tokens, with padding at the end of short rows.
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
    id: BatchId,
}

impl TreeBatch {
    /// Uploads packs of one optimizer step as one batch, floats as f32; the row length is the
    /// largest `padded_len`.
    ///
    /// # Panics
    /// If [`TreeBatch::try_new`] returns an error, with its message.
    #[track_caller]
    pub fn new(packs: &[Pack], device: &Device) -> Self {
        Self::with_dtype(packs, device, FloatDType::F32)
    }

    /// As [`TreeBatch::new`].
    ///
    /// # Errors
    /// [`BatchError`] if packs belong to different optimizer steps or loss forms, if only some of
    /// them carry advantages or log-probabilities, if a pack is inconsistent, if a pack continues
    /// another one, or if the batch has too many rows. Packs of one [`crate::pack_step`] can only
    /// cause the last two errors, and continue others only if the step has partitioned trees.
    pub fn try_new(packs: &[Pack], device: &Device) -> Result<Self, BatchError> {
        Self::try_with_dtype(packs, device, FloatDType::F32)
    }

    /// As [`TreeBatch::new`], with weights, advantages and log-probabilities in `dtype`.
    ///
    /// # Panics
    /// If [`TreeBatch::try_with_dtype`] returns an error, with its message.
    #[track_caller]
    pub fn with_dtype(packs: &[Pack], device: &Device, dtype: FloatDType) -> Self {
        match Self::try_with_dtype(packs, device, dtype) {
            Ok(batch) => batch,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`TreeBatch::try_new`], with weights, advantages and log-probabilities in `dtype`.
    ///
    /// # Errors
    /// [`BatchError`].
    pub fn try_with_dtype(
        packs: &[Pack],
        device: &Device,
        dtype: FloatDType,
    ) -> Result<Self, BatchError> {
        let length = check(packs)?;
        check_beginnings(packs)?;
        Ok(Self::upload(packs, length, device, dtype))
    }

    /// One pack, which may continue another one, as a batch. Every layer must then put the past
    /// context of the pack ([`crate::Gateway`]) before its rows, as `step_gradients` of
    /// `burn-tree-train` does.
    ///
    /// # Errors
    /// [`BatchError`] except [`BatchError::Continues`].
    pub fn try_part(pack: &Pack, device: &Device, dtype: FloatDType) -> Result<Self, BatchError> {
        let packs = std::slice::from_ref(pack);
        let length = check(packs)?;
        Ok(Self::upload(packs, length, device, dtype))
    }

    /// Uploads packs that were checked.
    fn upload(packs: &[Pack], length: usize, device: &Device, dtype: FloatDType) -> Self {
        let shape = [packs.len(), length];
        let id = BatchId::of(packs.iter().map(|pack| &pack.layout), length);
        let matrix = |fill: fn(&TreeLayout, &mut [i32]), padding: i32| {
            let mut values = vec![padding; shape[0] * shape[1]];
            for (pack, row) in packs.iter().zip(values.chunks_mut(shape[1].max(1))) {
                fill(&pack.layout, &mut row[..pack.layout.len()]);
            }
            Tensor::from_data(TensorData::new(values, shape), device)
        };
        Self {
            tokens: matrix(
                |layout, row| copy(row, layout.tokens.iter().map(|&t| t as i32)),
                0,
            ),
            position_ids: matrix(
                |layout, row| copy(row, layout.position_ids.iter().map(|&p| p as i32)),
                0,
            ),
            parents: matrix(|layout, row| copy(row, layout.parents.iter().copied()), -1),
            key_start: matrix(|layout, row| copy(row, 0..layout.len() as i32), 0),
            key_end: matrix(
                |layout, row| copy(row, layout.subtree_ends.iter().map(|&e| e as i32)),
                0,
            ),
            occurrences: OccurrenceBatch::new(packs, id, device, dtype),
            layouts: Arc::new(packs.iter().map(|pack| pack.layout.clone()).collect()),
            id,
        }
    }

    /// `[B * N]` token ids on the host, 0 in padding.
    pub fn host_tokens(&self) -> Vec<u32> {
        let [_, length] = self.dims();
        let mut tokens = Vec::with_capacity(self.layouts.len() * length);
        for layout in self.layouts.iter() {
            tokens.extend_from_slice(&layout.tokens);
            tokens.resize(tokens.len() + length - layout.len(), 0);
        }
        tokens
    }

    /// Bytes of all tensors except `tokens`, and of the layouts on the host.
    pub fn index_memory(&self) -> IndexMemory {
        let tensors = [
            &self.position_ids,
            &self.parents,
            &self.key_start,
            &self.key_end,
        ];
        let device_bytes: usize = tensors.into_iter().map(tensor_bytes).sum();
        let layouts = self.layouts.iter().map(TreeLayout::bytes).sum::<usize>();
        let own = IndexMemory {
            host_bytes: layouts as u64,
            device_bytes: device_bytes as u64,
        };
        own + self.occurrences.index_memory()
    }

    /// Number of rows `B` and their length `N` including padding.
    pub fn dims(&self) -> [usize; 2] {
        self.tokens.dims()
    }

    /// Identifies the shape of the batch and the contents of its layouts at the time of the upload.
    /// Masks, plans and predictions carry the id of their batch.
    pub fn id(&self) -> BatchId {
        self.id
    }

    /// Checks that every token and every target is below `size`, the number of rows of the model's
    /// embedding and head. For a larger id, devices return an arbitrary embedding or zeros, or fail
    /// without naming it. [`crate::PackedStep::check_vocabulary`] also names the trajectory.
    ///
    /// # Errors
    /// [`VocabularyError`] with the row and position of the first token that is not.
    pub fn check_vocabulary(&self, size: usize) -> Result<(), VocabularyError> {
        for (pack, layout) in self.layouts.iter().enumerate() {
            if let Some(row) = first_outside(&layout.tokens, size) {
                return Err(VocabularyError {
                    token: layout.tokens[row],
                    size,
                    position: layout.position_ids[row] as usize,
                    place: TokenPlace::Row {
                        pack,
                        row,
                        is_target: false,
                    },
                });
            }
        }
        let targets = &self.occurrences.host_targets;
        let Some(entry) = first_outside(targets, size) else {
            return Ok(());
        };
        let [_, length] = self.dims();
        let row = self.occurrences.host_rows[entry] as usize;
        let (pack, row) = (row / length, row % length);
        Err(VocabularyError {
            token: targets[entry],
            size,
            position: self.layouts[pack].position_ids[row] as usize + 1,
            place: TokenPlace::Row {
                pack,
                row,
                is_target: true,
            },
        })
    }
}

fn copy(row: &mut [i32], values: impl Iterator<Item = i32>) {
    row.iter_mut()
        .zip(values)
        .for_each(|(slot, value)| *slot = value);
}
