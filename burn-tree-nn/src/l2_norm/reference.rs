//! The definition, written to be read.

use burn::tensor::{DType, Tensor};
use burn_tree_kit::dtype::at_least_f32;

/// See [`super::l2_norm()`].
pub fn l2_norm<const D: usize>(x: Tensor<D>, epsilon: f64) -> Tensor<D> {
    let dtype = x.dtype();
    let wide: DType = at_least_f32(dtype).into();
    let x = x.cast(wide);
    let squares = x.clone().square().sum_dim(D - 1);
    // No gradient flows to rows of zeros.
    let y = (x / (squares.clone() + epsilon).sqrt()) * squares.sign();
    y.cast(dtype)
}
