//! Implementations from Burn's backend primitives: correct on every backend, and what native
//! implementations are tested against.

mod attention;
mod rope;
mod tile;

use burn::backend::Backend;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, FloatDType};

pub(crate) use attention::{attention_backward, attention_forward};
pub(crate) use rope::{inverse_frequencies, rope};

/// Intervals and positions on the device: keys `[B, M]`, queries `[B, N]`.
pub(crate) struct MaskPrimitives<B: Backend> {
    pub key_start: IntTensor<B>,
    pub key_end: IntTensor<B>,
    pub key_position: IntTensor<B>,
    pub query_position: IntTensor<B>,
}

/// Inputs and results of the forward pass, for the backward pass.
pub(crate) struct ForwardTensors<B: Backend> {
    pub query: FloatTensor<B>,
    pub key: FloatTensor<B>,
    pub value: FloatTensor<B>,
    pub output: FloatTensor<B>,
    pub log_sum_exp: FloatTensor<B>,
}

/// The dtype that sums are kept in: f64 for f64, otherwise f32.
pub(crate) fn accumulation_dtype(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}
