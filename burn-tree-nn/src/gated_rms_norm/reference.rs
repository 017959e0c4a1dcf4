//! The definition, written to be read.

use burn::tensor::{DType, Tensor, activation::silu};
use burn_tree_kit::dtype::at_least_f32;

use crate::rms_norm::reference::normalised;

/// See [`super::gated_rms_norm()`].
pub fn gated_rms_norm<const D: usize>(
    x: Tensor<D>,
    gate: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let dtype = x.dtype();
    let wide: DType = at_least_f32(dtype).into();
    let normed = normalised(x.cast(wide), epsilon).cast(dtype);
    let weighted = normed.cast(wide) * weight.cast(wide).unsqueeze();
    (weighted * silu(gate.cast(wide))).cast(dtype)
}
