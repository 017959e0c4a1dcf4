//! Implementation from Burn's primitives, for every backend.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::FloatDType;
use burn_tree_kit::dtype::at_least_f32;
use burn_tree_kit::primitive::{column_sum, row};

use super::scale::NormScale;
use crate::norm::generic::{grad_x, inverse_rms};

/// See [`crate::TreeNnOps::rms_norm`].
pub(crate) fn forward<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    epsilon: f64,
    scale: NormScale,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dtype = x.dtype();
    let wide = at_least_f32(dtype);
    let x = B::float_cast(x, wide);
    let inverse_rms = inverse_rms::<B>(x.clone(), epsilon);
    let mut normed = B::float_mul(x, inverse_rms.clone());
    if scale == NormScale::Weight {
        normed = B::float_cast(B::float_cast(normed, dtype.into()), wide);
    }
    let y = B::float_mul(normed, factors::<B>(weight, wide, scale));
    (B::float_cast(y, dtype.into()), inverse_rms)
}

/// See [`crate::TreeNnOps::rms_norm_backward`].
pub(crate) fn backward<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    inverse_rms: FloatTensor<B>,
    grad: FloatTensor<B>,
    scale: NormScale,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let (dtype, weight_dtype) = (x.dtype(), weight.dtype());
    let wide = at_least_f32(dtype);
    let grad = B::float_cast(grad, wide);
    let normed = B::float_mul(B::float_cast(x, wide), inverse_rms.clone());
    let grad_weight = column_sum::<B>(B::float_mul(grad.clone(), normed.clone()));
    let grad_normed = B::float_mul(grad, factors::<B>(weight, wide, scale));
    let grad_x = grad_x::<B>(normed, inverse_rms, grad_normed);
    (
        B::float_cast(grad_x, dtype.into()),
        B::float_cast(grad_weight, weight_dtype.into()),
    )
}

/// The factors of the normalised values: `weight [D]` -> `[1, D]` in `dtype`.
fn factors<B: Backend>(
    weight: FloatTensor<B>,
    dtype: FloatDType,
    scale: NormScale,
) -> FloatTensor<B> {
    let weight = row::<B>(weight, dtype);
    match scale {
        NormScale::Weight => weight,
        NormScale::OnePlusWeight => B::float_add_scalar(weight, 1.0.into()),
    }
}
