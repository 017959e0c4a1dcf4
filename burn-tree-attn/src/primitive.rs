//! Expressions of Burn's backend primitives.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::FloatDType;

/// Rows of keys or values `[B, Hkv, _, D]`, the past first.
pub(crate) fn join<B: Backend>(past: FloatTensor<B>, own: FloatTensor<B>) -> FloatTensor<B> {
    B::float_cat(vec![past, own], 2)
}

/// As Burn's cast, but nothing is done if the dtype is right.
pub(crate) fn cast<B: Backend>(tensor: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    if tensor.dtype() == dtype.into() {
        tensor
    } else {
        B::float_cast(tensor, dtype)
    }
}
