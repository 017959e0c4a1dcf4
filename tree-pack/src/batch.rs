//! `Pack` -> Burn tensors, and a `Batcher` for Burn's `DataLoader`.

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

use crate::{IndexMemory, LossForm, Pack, TreeLayout};

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
    /// The form of loss that they were made for: decides what was merged.
    pub loss_form: LossForm,
    /// `[n]` row in the flattened `[B * N]` batch.
    pub rows: Tensor<1, Int>,
    /// `[n]` token ids.
    pub targets: Tensor<1, Int>,
    /// `[n]` coefficients in the loss of the step.
    pub weights: Tensor<1>,
    /// `[n]` number of original predictions that each entry stands for.
    pub multiplicities: Tensor<1>,
    /// `[n]` trajectory index in the step.
    pub trajectories: Tensor<1, Int>,
    /// `[n]` index of the target in its trajectory.
    pub token_indices: Tensor<1, Int>,
    /// `[n]` advantages, if any.
    pub advantages: Option<Tensor<1>>,
    /// `[n]` old log-probabilities, if any.
    pub old_log_probs: Option<Tensor<1>>,
    /// `[n]` reference log-probabilities, if any.
    pub ref_log_probs: Option<Tensor<1>>,
    /// `[n]` log-probabilities of the inference engine, if any.
    pub sampling_log_probs: Option<Tensor<1>>,
    /// Host copy of `rows`, from which the head plans its projection.
    pub host_rows: Arc<Vec<u32>>,
    /// Host copy of `trajectories`, by which losses of whole trajectories plan their sums.
    pub host_trajectories: Arc<Vec<u32>>,
}

impl TreeBatch {
    /// Uploads packs of one optimizer step as one batch, floats as f32; the row length is the
    /// largest `padded_len`.
    ///
    /// # Panics
    /// If only some of the packs carry advantages or log-probabilities, if they were made for
    /// different forms of loss, if a pack is longer than its `padded_len`, or if `B * N` exceeds
    /// `i32::MAX`. Packs of one [`crate::pack_step`] never do the first three.
    pub fn new(packs: &[Pack], device: &Device) -> Self {
        Self::with_dtype(packs, device, FloatDType::F32)
    }

    /// As [`TreeBatch::new`], with weights, advantages and log-probabilities in `dtype`.
    pub fn with_dtype(packs: &[Pack], device: &Device, dtype: FloatDType) -> Self {
        let shape = [packs.len(), row_length(packs)];
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
            occurrences: OccurrenceBatch::new(packs, shape[1], device, dtype),
            layouts: Arc::new(packs.iter().map(|pack| pack.layout.clone()).collect()),
        }
    }

    /// `[B * N]` the token ids on the host, 0 in padding.
    pub fn host_tokens(&self) -> Vec<u32> {
        let [_, length] = self.dims();
        let mut tokens = Vec::with_capacity(self.layouts.len() * length);
        for layout in self.layouts.iter() {
            tokens.extend_from_slice(&layout.tokens);
            tokens.resize(tokens.len() + length - layout.len(), 0);
        }
        tokens
    }

    /// Bytes of all tensors but `tokens`, and of the layouts on the host.
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
}

fn tensor_bytes<const D: usize>(tensor: &Tensor<D, Int>) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}

fn copy(row: &mut [i32], values: impl Iterator<Item = i32>) {
    row.iter_mut()
        .zip(values)
        .for_each(|(slot, value)| *slot = value);
}

/// The largest `padded_len`, checked so that every index of the batch fits the tensors.
fn row_length(packs: &[Pack]) -> usize {
    let length = packs.iter().map(|pack| pack.padded_len).max().unwrap_or(0);
    for pack in packs {
        assert!(
            pack.layout.len() <= pack.padded_len,
            "a pack of {} tokens has padded_len {}",
            pack.layout.len(),
            pack.padded_len
        );
    }
    assert!(
        packs
            .len()
            .checked_mul(length)
            .is_some_and(|size| size <= i32::MAX as usize),
        "a batch of {} rows of {length} tokens exceeds the index range",
        packs.len()
    );
    length
}

impl OccurrenceBatch {
    /// Number of occurrences.
    pub fn len(&self) -> usize {
        self.host_rows.len()
    }

    /// Whether nothing is trained.
    pub fn is_empty(&self) -> bool {
        self.host_rows.is_empty()
    }

    /// Bytes of the tensors, and of the rows on the host.
    pub fn index_memory(&self) -> IndexMemory {
        let integers = [
            &self.rows,
            &self.targets,
            &self.trajectories,
            &self.token_indices,
        ];
        let floats = [
            Some(&self.weights),
            Some(&self.multiplicities),
            self.advantages.as_ref(),
            self.old_log_probs.as_ref(),
            self.ref_log_probs.as_ref(),
            self.sampling_log_probs.as_ref(),
        ];
        let floats = floats.into_iter().flatten();
        let float_bytes =
            |tensor: &Tensor<1>| tensor.shape().num_elements() * tensor.dtype().size();
        let device_bytes = integers.into_iter().map(tensor_bytes).sum::<usize>()
            + floats.map(float_bytes).sum::<usize>();
        let host_bytes =
            size_of_val(self.host_rows.as_slice()) + size_of_val(self.host_trajectories.as_slice());
        IndexMemory {
            host_bytes: host_bytes as u64,
            device_bytes: device_bytes as u64,
        }
    }

    fn new(packs: &[Pack], row_length: usize, device: &Device, dtype: FloatDType) -> Self {
        let columns = || packs.iter().map(|pack| &pack.occurrences);
        let count: usize = columns().map(|columns| columns.len()).sum();
        let integers = |values: Vec<i32>| {
            Tensor::<1, Int>::from_data(TensorData::new(values, [count]), device)
        };
        let floats = |values: TensorData| {
            Tensor::<1>::from_data(values, (device, burn::tensor::DType::from(dtype)))
        };
        let optional = |name: &str, column: fn(&crate::Occurrences) -> Option<&Vec<f32>>| {
            // An empty pack says nothing about which columns the step has.
            let with_predictions = || columns().filter(|columns| !columns.is_empty());
            let present = with_predictions()
                .filter(|columns| column(columns).is_some())
                .count();
            if present == 0 {
                return None;
            }
            assert_eq!(
                present,
                with_predictions().count(),
                "only some packs of the batch carry {name}"
            );
            let values: Vec<f32> = columns().filter_map(column).flatten().copied().collect();
            Some(floats(TensorData::new(values, [count])))
        };
        let host_rows: Vec<u32> = columns()
            .enumerate()
            .flat_map(|(index, columns)| {
                let offset = (index * row_length) as u32;
                columns.rows.iter().map(move |row| row + offset)
            })
            .collect();
        let as_i32 = |column: fn(&crate::Occurrences) -> &Vec<u32>| {
            integers(
                columns()
                    .flat_map(column)
                    .map(|&value| value as i32)
                    .collect(),
            )
        };
        let host_trajectories: Vec<u32> = columns()
            .flat_map(|columns| &columns.trajectories)
            .copied()
            .collect();
        let mut loss_forms = columns()
            .filter(|columns| !columns.is_empty())
            .map(|columns| columns.loss_form);
        let loss_form = loss_forms.next().unwrap_or_default();
        assert!(
            loss_forms.all(|other| other == loss_form),
            "the packs of the batch were made for different forms of loss"
        );
        let multiplicities = columns().flat_map(|columns| &columns.multiplicities);
        let multiplicities: Vec<f32> = multiplicities.map(|&count| count as f32).collect();
        Self {
            loss_form,
            multiplicities: floats(TensorData::new(multiplicities, [count])),
            rows: integers(host_rows.iter().map(|&row| row as i32).collect()),
            targets: as_i32(|columns| &columns.targets),
            weights: floats(TensorData::new(
                columns()
                    .flat_map(|columns| &columns.weights)
                    .copied()
                    .collect::<Vec<f64>>(),
                [count],
            )),
            trajectories: as_i32(|columns| &columns.trajectories),
            token_indices: as_i32(|columns| &columns.token_indices),
            advantages: optional("advantages", |columns| columns.advantages.as_ref()),
            old_log_probs: optional("old log-probs", |columns| columns.old_log_probs.as_ref()),
            ref_log_probs: optional("reference log-probs", |columns| {
                columns.ref_log_probs.as_ref()
            }),
            sampling_log_probs: optional("sampling log-probs", |columns| {
                columns.sampling_log_probs.as_ref()
            }),
            host_rows: Arc::new(host_rows),
            host_trajectories: Arc::new(host_trajectories),
        }
    }
}

/// Collects packs into [`TreeBatch`]es for Burn's `DataLoader`.
///
/// All packs of a batch must come from the same optimizer step, since their weights contain its
/// denominator.
#[derive(Clone, Copy, Debug)]
pub struct TreeBatcher {
    /// Type of weights, advantages and log-probabilities.
    pub dtype: FloatDType,
}

impl Default for TreeBatcher {
    fn default() -> Self {
        Self {
            dtype: FloatDType::F32,
        }
    }
}

impl Batcher<Pack, TreeBatch> for TreeBatcher {
    fn batch(&self, packs: Vec<Pack>, device: &Device) -> TreeBatch {
        TreeBatch::with_dtype(&packs, device, self.dtype)
    }
}
