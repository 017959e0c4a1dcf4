//! Implementation from Burn's primitives, for every backend.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};

use burn_tree_kit::dtype::at_least_f32;
use burn_tree_kit::primitive::{sigmoid, silu_with_slope};

/// See [`crate::TreeNnOps::swiglu`].
pub(crate) fn forward<B: Backend>(gate: FloatTensor<B>, up: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = gate.dtype();
    let gate = B::float_cast(gate, at_least_f32(dtype));
    let silu = B::float_mul(gate.clone(), sigmoid::<B>(gate));
    B::float_mul(B::float_cast(silu, dtype.into()), up)
}

/// See [`crate::TreeNnOps::swiglu_backward`].
pub(crate) fn backward<B: Backend>(
    gate: FloatTensor<B>,
    up: FloatTensor<B>,
    grad: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dtype = gate.dtype();
    let wide = at_least_f32(dtype);
    let [gate, up, grad] = [gate, up, grad].map(|tensor| B::float_cast(tensor, wide));
    let (silu, slope) = silu_with_slope::<B>(gate);
    let grad_up = B::float_mul(grad.clone(), silu);
    let grad_gate = B::float_mul(B::float_mul(grad, up), slope);
    (
        B::float_cast(grad_gate, dtype.into()),
        B::float_cast(grad_up, dtype.into()),
    )
}
