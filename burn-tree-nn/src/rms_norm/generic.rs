//! Implementation from Burn's primitives, for every backend.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{FloatDType, Shape};

use burn_tree_kit::dtype::at_least_f32;

/// See [`crate::TreeNnOps::rms_norm`].
pub(crate) fn forward<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    epsilon: f64,
    zero_centered: bool,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dtype = x.dtype();
    let wide = at_least_f32(dtype);
    let x = B::float_cast(x, wide);
    let mean_square = B::float_mean_dim(B::float_mul(x.clone(), x.clone()), 1);
    let rms = B::float_sqrt(B::float_add_scalar(mean_square, epsilon.into()));
    let inverse_rms = B::float_recip(rms);
    let mut normed = B::float_mul(x, inverse_rms.clone());
    if !zero_centered {
        normed = B::float_cast(B::float_cast(normed, dtype.into()), wide);
    }
    let y = B::float_mul(normed, scale::<B>(weight, wide, zero_centered));
    (B::float_cast(y, dtype.into()), inverse_rms)
}

/// See [`crate::TreeNnOps::rms_norm_backward`].
pub(crate) fn backward<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    inverse_rms: FloatTensor<B>,
    grad: FloatTensor<B>,
    zero_centered: bool,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let (dtype, weight_dtype) = (x.dtype(), weight.dtype());
    let size = weight.shape()[0];
    let wide = at_least_f32(dtype);
    let grad = B::float_cast(grad, wide);
    let normed = B::float_mul(B::float_cast(x, wide), inverse_rms.clone());
    let grad_weight = B::float_sum_dim(B::float_mul(grad.clone(), normed.clone()), 0);
    let grad_weight = B::float_reshape(grad_weight, Shape::new([size]));
    // n = x r, r = rsqrt(mean x^2 + eps): dx = r (dn - n mean(dn n)).
    let grad_normed = B::float_mul(grad, scale::<B>(weight, wide, zero_centered));
    let mean = B::float_mean_dim(B::float_mul(grad_normed.clone(), normed.clone()), 1);
    let along = B::float_mul(normed, mean);
    let grad_x = B::float_mul(B::float_sub(grad_normed, along), inverse_rms);
    (
        B::float_cast(grad_x, dtype.into()),
        B::float_cast(grad_weight, weight_dtype.into()),
    )
}

/// What the normalised values are multiplied by: `weight [D]` -> `[1, D]` in `dtype`.
fn scale<B: Backend>(
    weight: FloatTensor<B>,
    dtype: FloatDType,
    zero_centered: bool,
) -> FloatTensor<B> {
    let size = weight.shape()[0];
    let weight = B::float_reshape(B::float_cast(weight, dtype), Shape::new([1, size]));
    match zero_centered {
        true => B::float_add_scalar(weight, 1.0.into()),
        false => weight,
    }
}
