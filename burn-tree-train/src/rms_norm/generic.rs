//! Implementation from Burn's primitives, for every backend.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::Shape;

use crate::precision::at_least_f32;

/// See [`crate::TreeTrainOps::rms_norm`].
pub(crate) fn forward<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    epsilon: f64,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dtype = x.dtype();
    let wide = at_least_f32(dtype);
    let x = B::float_cast(x, wide);
    let mean_square = B::float_mean_dim(B::float_mul(x.clone(), x.clone()), 1);
    let rms = B::float_sqrt(B::float_add_scalar(mean_square, epsilon.into()));
    let inverse_rms = B::float_recip(rms);
    let normed = B::float_cast(B::float_mul(x, inverse_rms.clone()), dtype.into());
    let y = B::float_mul(B::float_cast(normed, wide), row::<B>(weight, wide));
    (B::float_cast(y, dtype.into()), inverse_rms)
}

/// See [`crate::TreeTrainOps::rms_norm_backward`].
pub(crate) fn backward<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    inverse_rms: FloatTensor<B>,
    grad: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let (dtype, weight_dtype) = (x.dtype(), weight.dtype());
    let size = weight.shape()[0];
    let wide = at_least_f32(dtype);
    let grad = B::float_cast(grad, wide);
    let normed = B::float_mul(B::float_cast(x, wide), inverse_rms.clone());
    let grad_weight = B::float_sum_dim(B::float_mul(grad.clone(), normed.clone()), 0);
    let grad_weight = B::float_reshape(grad_weight, Shape::new([size]));
    // n = x r, r = rsqrt(mean x^2 + eps): dx = r (dn - n mean(dn n)).
    let grad_normed = B::float_mul(grad, row::<B>(weight, wide));
    let mean = B::float_mean_dim(B::float_mul(grad_normed.clone(), normed.clone()), 1);
    let along = B::float_mul(normed, mean);
    let grad_x = B::float_mul(B::float_sub(grad_normed, along), inverse_rms);
    (
        B::float_cast(grad_x, dtype.into()),
        B::float_cast(grad_weight, weight_dtype.into()),
    )
}

/// `[D]` -> `[1, D]` in `dtype`.
fn row<B: Backend>(weight: FloatTensor<B>, dtype: burn::tensor::FloatDType) -> FloatTensor<B> {
    let size = weight.shape()[0];
    B::float_reshape(B::float_cast(weight, dtype), Shape::new([1, size]))
}
