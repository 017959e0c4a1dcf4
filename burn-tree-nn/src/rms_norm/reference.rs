//! The definition, written to be read.

use burn::tensor::{DType, Tensor};
use burn_tree_kit::dtype::at_least_f32;

/// See [`super::rms_norm()`].
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let dtype = x.dtype();
    let wide: DType = at_least_f32(dtype).into();
    let normed = normalised(x.cast(wide), epsilon).cast(dtype);
    (normed.cast(wide) * weight.cast(wide).unsqueeze()).cast(dtype)
}

/// See [`super::zero_centered_rms_norm`].
pub fn zero_centered_rms_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let dtype = x.dtype();
    let wide: DType = at_least_f32(dtype).into();
    let normed = normalised(x.cast(wide), epsilon);
    (normed * (weight.cast(wide) + 1.0).unsqueeze()).cast(dtype)
}

/// `x / sqrt(mean(x^2) + epsilon)` over the last dimension.
pub(crate) fn normalised<const D: usize>(x: Tensor<D>, epsilon: f64) -> Tensor<D> {
    let mean_square = x.clone().square().mean_dim(D - 1);
    x / (mean_square + epsilon).sqrt()
}
