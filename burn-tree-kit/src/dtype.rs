//! The dtypes that operations compute in.

use burn::tensor::{DType, FloatDType};

/// f64 for f64, f32 for all other dtypes: the dtype that sums, norms, gates and softmaxes are
/// computed in.
pub fn at_least_f32(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

/// The dtype that two float tensors are multiplied in: their own if it is the same, otherwise the
/// wider one, and f32 for f16 with bf16.
pub fn product_dtype(lhs: DType, rhs: DType) -> FloatDType {
    match (lhs, rhs) {
        (lhs, rhs) if lhs == rhs => lhs.into(),
        (DType::F64, _) | (_, DType::F64) => FloatDType::F64,
        _ => FloatDType::F32,
    }
}
