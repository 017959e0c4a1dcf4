//! Implementations from Burn's backend primitives: correct on every backend, and what native
//! implementations are tested against.

mod attention;
mod rope;
mod tile;

use burn::tensor::{DType, FloatDType};

pub(crate) use attention::{attention_backward, attention_forward};
pub(crate) use rope::rope;

/// The dtype that sums are kept in: f64 for f64, otherwise f32.
pub(crate) fn accumulation_dtype(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}
