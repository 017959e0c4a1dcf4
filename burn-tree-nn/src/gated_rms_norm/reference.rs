//! The definition, written to be read.

use burn::tensor::{DType, Tensor, activation::silu};

/// See [`super::gated_rms_norm`].
pub fn gated_rms_norm<const D: usize>(
    x: Tensor<D>,
    gate: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let dtype = x.dtype();
    let wide = match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let x = x.cast(wide);
    let mean_square = x.clone().square().mean_dim(D - 1);
    let normed = (x / (mean_square + epsilon).sqrt()).cast(dtype);
    let weighted = normed.cast(wide) * weight.cast(wide).unsqueeze();
    (weighted * silu(gate.cast(wide))).cast(dtype)
}
