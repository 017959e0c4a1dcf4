//! The definition, written to be read.

use burn::tensor::{DType, Tensor, activation::softplus};
use burn_tree_kit::dtype::at_least_f32;

/// See [`super::decay_gate()`].
pub fn decay_gate(a: Tensor<3>, a_log: Tensor<1>, dt_bias: Tensor<1>) -> Tensor<3> {
    let wide: DType = at_least_f32(a.dtype()).into();
    let (a_log, dt_bias) = (a_log.cast(wide), dt_bias.cast(wide));
    a_log.exp().neg().unsqueeze() * softplus(a.cast(wide) + dt_bias.unsqueeze(), 1.0)
}
