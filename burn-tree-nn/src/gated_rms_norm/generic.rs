//! Implementation from Burn's primitives, for every backend.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};

use burn_tree_kit::dtype::at_least_f32;
use burn_tree_kit::primitive::{column_sum, row, sigmoid, silu_with_slope};

use crate::norm::generic::{grad_x, inverse_rms};

/// See [`crate::TreeNnOps::gated_rms_norm`].
pub(crate) fn forward<B: Backend>(
    x: FloatTensor<B>,
    gate: FloatTensor<B>,
    weight: FloatTensor<B>,
    epsilon: f64,
) -> FloatTensor<B> {
    let dtype = x.dtype();
    let wide = at_least_f32(dtype);
    let [x, gate] = [x, gate].map(|tensor| B::float_cast(tensor, wide));
    let inverse_rms = inverse_rms::<B>(x.clone(), epsilon);
    let normed = B::float_cast(B::float_mul(x, inverse_rms), dtype.into());
    let weighted = B::float_mul(B::float_cast(normed, wide), row::<B>(weight, wide));
    let silu = B::float_mul(gate.clone(), sigmoid::<B>(gate));
    let y = B::float_mul(weighted, silu);
    B::float_cast(y, dtype.into())
}

/// See [`crate::TreeNnOps::gated_rms_norm_backward`].
pub(crate) fn backward<B: Backend>(
    x: FloatTensor<B>,
    gate: FloatTensor<B>,
    weight: FloatTensor<B>,
    grad: FloatTensor<B>,
    epsilon: f64,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let (dtype, weight_dtype) = (x.dtype(), weight.dtype());
    let wide = at_least_f32(dtype);
    let [x, gate, grad] = [x, gate, grad].map(|tensor| B::float_cast(tensor, wide));
    let weight = row::<B>(weight, wide);
    let inverse_rms = inverse_rms::<B>(x.clone(), epsilon);
    let normed = B::float_mul(x, inverse_rms.clone());
    let (silu, slope) = silu_with_slope::<B>(gate);
    // y = w n silu(z)
    let grad_activated = B::float_mul(grad.clone(), normed.clone());
    let grad_gate = B::float_mul(B::float_mul(grad_activated.clone(), weight.clone()), slope);
    let grad_weight = column_sum::<B>(B::float_mul(grad_activated, silu.clone()));
    let grad_normed = B::float_mul(B::float_mul(grad, weight), silu);
    let grad_x = grad_x::<B>(normed, inverse_rms, grad_normed);
    (
        B::float_cast(grad_x, dtype.into()),
        B::float_cast(grad_gate, dtype.into()),
        B::float_cast(grad_weight, weight_dtype.into()),
    )
}
