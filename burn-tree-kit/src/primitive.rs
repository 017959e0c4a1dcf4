//! Expressions of Burn's backend primitives.

use burn::backend::{
    Backend, TensorMetadata,
    tensor::{Device, FloatTensor, IntTensor},
};
use burn::tensor::{FloatDType, Shape, TensorData};

/// Indices on the host as a tensor `[n]` of i32; each must be below 2^31.
pub fn int_tensor<B: Backend>(values: &[u32], device: &Device<B>) -> IntTensor<B> {
    let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
    let length = values.len();
    B::int_from_data(TensorData::new(values, [length]), device)
}

/// A vector as a row, cast to `dtype`: `[D]` -> `[1, D]`.
pub fn row<B: Backend>(values: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    let size = values.shape()[0];
    B::float_reshape(B::float_cast(values, dtype), Shape::new([1, size]))
}

/// Sums over rows: `[R, D]` -> `[D]`, in the dtype of `values`.
pub fn column_sum<B: Backend>(values: FloatTensor<B>) -> FloatTensor<B> {
    let size = values.shape()[1];
    B::float_reshape(B::float_sum_dim(values, 0), Shape::new([size]))
}

/// `1 / (1 + e^-x)`, element by element.
pub fn sigmoid<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let exp = B::float_exp(B::float_neg(x));
    B::float_recip(B::float_add_scalar(exp, 1.into()))
}

/// `silu(x) = x s` and its derivative `s + silu(x) (1 - s)` with `s = sigmoid(x)`, element by
/// element.
pub fn silu_with_slope<B: Backend>(x: FloatTensor<B>) -> (FloatTensor<B>, FloatTensor<B>) {
    let sigmoid = sigmoid::<B>(x.clone());
    let silu = B::float_mul(x, sigmoid.clone());
    let rest = B::float_add_scalar(B::float_neg(sigmoid.clone()), 1.into());
    let slope = B::float_add(sigmoid, B::float_mul(silu.clone(), rest));
    (silu, slope)
}
