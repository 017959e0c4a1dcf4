//! The predictions of a batch as tensors.

use std::sync::Arc;

use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};

use super::check::OPTIONAL_COLUMNS;
use crate::ids::BatchId;
use crate::index_memory::IndexMemory;
use crate::objective::LossForm;
use crate::occurrences::Occurrences;
use crate::packs::Pack;

/// [`Occurrences`] of a whole batch as tensors of length `n`, in ascending order of row.
#[derive(Clone, Debug)]
pub struct OccurrenceBatch {
    /// The batch whose rows make the predictions; `None` for occurrences that were built by hand,
    /// which cannot be checked against hidden states.
    pub batch: Option<BatchId>,
    /// The loss form of the step, which determines what was merged.
    pub loss_form: LossForm,
    /// `[n]` row in the flattened `[B * N]` batch.
    pub rows: Tensor<1, Int>,
    /// `[n]` token ids.
    pub targets: Tensor<1, Int>,
    /// `[n]` coefficients in the loss of the step.
    pub weights: Tensor<1>,
    /// `[n]` number of original predictions in each entry.
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
    /// Host copy of `rows`, for the plan of the head's projection.
    pub host_rows: Arc<Vec<u32>>,
    /// Host copy of `targets`, for the check against the size of the vocabulary.
    pub host_targets: Arc<Vec<u32>>,
    /// Host copy of `trajectories`, for the plan of sums over whole trajectories.
    pub host_trajectories: Arc<Vec<u32>>,
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

    /// Bytes of the tensors and of the copies on the host.
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
        let host = [&self.host_rows, &self.host_targets, &self.host_trajectories];
        let host_bytes: usize = host
            .map(|values| size_of_val(values.as_slice()))
            .iter()
            .sum();
        IndexMemory {
            host_bytes: host_bytes as u64,
            device_bytes: device_bytes as u64,
        }
    }

    /// Uploads the predictions of checked packs.
    pub(super) fn new(packs: &[Pack], batch: BatchId, device: &Device, dtype: FloatDType) -> Self {
        let [_, row_length] = batch.dims();
        let columns = || packs.iter().map(|pack| &pack.occurrences);
        let count: usize = columns().map(|columns| columns.len()).sum();
        let integers = |values: &[u32]| {
            let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
            Tensor::<1, Int>::from_data(TensorData::new(values, [count]), device)
        };
        let floats =
            |values: TensorData| Tensor::<1>::from_data(values, (device, DType::from(dtype)));
        let together = |column: fn(&Occurrences) -> &Vec<u32>| -> Vec<u32> {
            columns().flat_map(column).copied().collect()
        };
        let [advantages, old_log_probs, ref_log_probs, sampling_log_probs] =
            OPTIONAL_COLUMNS.map(|(_, column)| {
                let mut trained = columns().filter(|columns| !columns.is_empty());
                let values = || columns().filter_map(column).flatten().copied();
                trained
                    .any(|columns| column(columns).is_some())
                    .then(|| floats(TensorData::new(values().collect::<Vec<f32>>(), [count])))
            });
        let host_rows = columns().enumerate().flat_map(|(index, columns)| {
            let offset = (index * row_length) as u32;
            columns.rows.iter().map(move |row| row + offset)
        });
        let host_rows: Vec<u32> = host_rows.collect();
        let host_targets = together(|columns| &columns.targets);
        let host_trajectories = together(|columns| &columns.trajectories);
        let multiplicities = columns().flat_map(|columns| &columns.multiplicities);
        let multiplicities: Vec<f32> = multiplicities.map(|&count| count as f32).collect();
        let weights = columns().flat_map(|columns| &columns.weights);
        let weights: Vec<f64> = weights.copied().collect();
        let mut trained = columns().filter(|columns| !columns.is_empty());
        Self {
            batch: Some(batch),
            loss_form: trained
                .next()
                .map(|columns| columns.loss_form)
                .unwrap_or_default(),
            rows: integers(&host_rows),
            targets: integers(&host_targets),
            weights: floats(TensorData::new(weights, [count])),
            multiplicities: floats(TensorData::new(multiplicities, [count])),
            trajectories: integers(&host_trajectories),
            token_indices: integers(&together(|columns| &columns.token_indices)),
            advantages,
            old_log_probs,
            ref_log_probs,
            sampling_log_probs,
            host_rows: Arc::new(host_rows),
            host_targets: Arc::new(host_targets),
            host_trajectories: Arc::new(host_trajectories),
        }
    }
}

pub(super) fn tensor_bytes<const D: usize>(tensor: &Tensor<D, Int>) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}
