//! Which dtype a computation runs in.

use burn::tensor::{DType, FloatDType};

/// `dtype`, or f32 where that is narrower: the precision of gates, states and sums.
pub(crate) fn at_least_f32(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}
