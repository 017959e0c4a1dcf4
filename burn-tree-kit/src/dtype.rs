//! In which dtype operations compute.

use burn::tensor::{DType, FloatDType};

/// `dtype`, or f32 where that is narrower: the precision of sums, norms, gates and softmaxes.
pub fn at_least_f32(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

/// The dtype in which two float tensors are multiplied: their own if equal, else the wider one
/// (f32 for f16 with bf16).
pub fn product_dtype(lhs: DType, rhs: DType) -> FloatDType {
    match (lhs, rhs) {
        (lhs, rhs) if lhs == rhs => lhs.into(),
        (DType::F64, _) | (_, DType::F64) => FloatDType::F64,
        _ => FloatDType::F32,
    }
}
