//! Implementation from Burn's primitives, for every backend.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};

use burn_tree_kit::dtype::at_least_f32;

/// See [`crate::TreeNnOps::l2_norm`].
pub(crate) fn forward<B: Backend>(x: FloatTensor<B>, epsilon: f64) -> FloatTensor<B> {
    let dtype = x.dtype();
    let x = B::float_cast(x, at_least_f32(dtype));
    let y = B::float_mul(x.clone(), inverse_norm::<B>(x, epsilon));
    B::float_cast(y, dtype.into())
}

/// See [`crate::TreeNnOps::l2_norm_backward`].
pub(crate) fn backward<B: Backend>(
    x: FloatTensor<B>,
    grad: FloatTensor<B>,
    epsilon: f64,
) -> FloatTensor<B> {
    let dtype = x.dtype();
    let [x, grad] = [x, grad].map(|tensor| B::float_cast(tensor, at_least_f32(dtype)));
    // y = x r, r = rsqrt(sum x^2 + eps): dx = r (dy - y sum(dy y)).
    let factor = inverse_norm::<B>(x.clone(), epsilon);
    let y = B::float_mul(x, factor.clone());
    let along = B::float_sum_dim(B::float_mul(grad.clone(), y.clone()), 1);
    let grad_x = B::float_mul(B::float_sub(grad, B::float_mul(y, along)), factor);
    B::float_cast(grad_x, dtype.into())
}

/// `[R, D]` -> `[R, 1]`, 0 for rows of zeros.
fn inverse_norm<B: Backend>(x: FloatTensor<B>, epsilon: f64) -> FloatTensor<B> {
    let squares = B::float_sum_dim(B::float_mul(x.clone(), x), 1);
    let norm = B::float_sqrt(B::float_add_scalar(squares.clone(), epsilon.into()));
    B::float_mul(B::float_recip(norm), B::float_sign(squares))
}
