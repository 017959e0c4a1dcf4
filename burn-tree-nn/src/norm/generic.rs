//! Parts of norms from Burn's primitives.

use burn::backend::{Backend, tensor::FloatTensor};

/// `rsqrt(mean(x^2) + epsilon)` of each row: `[R, D]` -> `[R, 1]`.
pub(crate) fn inverse_rms<B: Backend>(x: FloatTensor<B>, epsilon: f64) -> FloatTensor<B> {
    let mean_square = B::float_mean_dim(B::float_mul(x.clone(), x), 1);
    let rms = B::float_sqrt(B::float_add_scalar(mean_square, epsilon.into()));
    B::float_recip(rms)
}

/// The gradient of `x [R, D]` for the gradient `grad_normed [R, D]` of the normalised rows
/// `normed [R, D]`: with `n = x r` and `r = rsqrt(mean(x^2) + eps)`, `dx = r (dn - n mean(dn n))`.
pub(crate) fn grad_x<B: Backend>(
    normed: FloatTensor<B>,
    inverse_rms: FloatTensor<B>,
    grad_normed: FloatTensor<B>,
) -> FloatTensor<B> {
    let mean = B::float_mean_dim(B::float_mul(grad_normed.clone(), normed.clone()), 1);
    let along = B::float_mul(normed, mean);
    B::float_mul(B::float_sub(grad_normed, along), inverse_rms)
}
