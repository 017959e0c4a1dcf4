//! A mask as tensors.

use std::convert::Infallible;
use std::sync::Arc;

use burn::backend::tensor::{Device, IntTensor};
use burn::backend::{Backend, TensorMetadata, get_device_settings};
use burn::tensor::TensorData;
use tree_pack::IndexMemory;

use crate::mask::Visibility;

/// Intervals and positions on a device: keys `[B, M]`, queries `[B, N]`.
pub(super) struct MaskTensors<B: Backend> {
    pub key_start: IntTensor<B>,
    pub key_end: IntTensor<B>,
    pub key_position: IntTensor<B>,
    pub query_position: IntTensor<B>,
}

impl<B: Backend> MaskTensors<B> {
    /// Those of a mask, made on first use and kept with it.
    pub(super) fn of(visibility: &Visibility, device: &Device<B>) -> Arc<Self> {
        let make = || {
            let tensors = Self::upload(visibility, device);
            let memory = IndexMemory {
                host_bytes: 0,
                device_bytes: tensors.bytes(),
            };
            Ok::<_, Infallible>((tensors, memory))
        };
        let Ok(tensors) = visibility.derived().get(device.clone(), make);
        tensors
    }

    fn upload(visibility: &Visibility, device: &Device<B>) -> Self {
        let batch_size = visibility.batch_size();
        // LibTorch computes with i64 alone.
        let dtype = get_device_settings::<B>(device).int_dtype;
        let tensor = |values: &[u32]| {
            let shape = [batch_size, values.len() / batch_size];
            let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
            let data = TensorData::new(values, shape).convert_dtype(dtype.into());
            B::int_from_data(data, device)
        };
        Self {
            key_start: tensor(visibility.key_start()),
            key_end: tensor(visibility.key_end()),
            key_position: tensor(visibility.key_position()),
            query_position: tensor(visibility.query_position()),
        }
    }

    fn bytes(&self) -> u64 {
        let tensors = [
            &self.key_start,
            &self.key_end,
            &self.key_position,
            &self.query_position,
        ];
        let bytes = tensors.map(|tensor| tensor.shape().num_elements() * tensor.dtype().size());
        bytes.iter().sum::<usize>() as u64
    }
}
