//! The definition, written to be read.

use burn::tensor::{DType, Tensor, activation::softplus};

/// See [`super::decay_gate`].
pub fn decay_gate(a: Tensor<3>, a_log: Tensor<1>, dt_bias: Tensor<1>) -> Tensor<3> {
    let wide = match a.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let (a_log, dt_bias) = (a_log.cast(wide), dt_bias.cast(wide));
    a_log.exp().neg().unsqueeze() * softplus(a.cast(wide) + dt_bias.unsqueeze(), 1.0)
}
