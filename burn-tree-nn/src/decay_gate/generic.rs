//! Implementation from Burn's primitives, for every backend.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};

use burn_tree_kit::dtype::at_least_f32;
use burn_tree_kit::primitive::{column_sum, row, sigmoid};

/// See [`crate::TreeNnOps::decay_gate`].
pub(crate) fn forward<B: Backend>(
    a: FloatTensor<B>,
    a_log: FloatTensor<B>,
    dt_bias: FloatTensor<B>,
) -> FloatTensor<B> {
    let wide = at_least_f32(a.dtype());
    let x = B::float_add(B::float_cast(a, wide), row::<B>(dt_bias, wide));
    let rate = B::float_neg(B::float_exp(row::<B>(a_log, wide)));
    B::float_mul(rate, softplus::<B>(x))
}

/// See [`crate::TreeNnOps::decay_gate_backward`].
pub(crate) fn backward<B: Backend>(
    a: FloatTensor<B>,
    a_log: FloatTensor<B>,
    dt_bias: FloatTensor<B>,
    grad: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let (dtype, wide) = (a.dtype(), at_least_f32(a.dtype()));
    let (a_log_dtype, dt_bias_dtype) = (a_log.dtype(), dt_bias.dtype());
    let x = B::float_add(B::float_cast(a, wide), row::<B>(dt_bias, wide));
    // g = -e^A softplus(x): dg/dx = -e^A sigmoid(x), dg/dA = g.
    let rate = B::float_neg(B::float_exp(row::<B>(a_log, wide)));
    let grad = B::float_mul(B::float_cast(grad, wide), rate);
    let grad_a = B::float_mul(grad.clone(), sigmoid::<B>(x.clone()));
    let grad_a_log = B::float_mul(grad, softplus::<B>(x));
    (
        B::float_cast(grad_a.clone(), dtype.into()),
        B::float_cast(column_sum::<B>(grad_a_log), a_log_dtype.into()),
        B::float_cast(column_sum::<B>(grad_a), dt_bias_dtype.into()),
    )
}

/// `max(x, 0) + ln(1 + e^-|x|)`, which never overflows.
fn softplus<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let rest = B::float_log1p(B::float_exp(B::float_neg(B::float_abs(x.clone()))));
    B::float_add(B::float_clamp_min(x, 0.into()), rest)
}
