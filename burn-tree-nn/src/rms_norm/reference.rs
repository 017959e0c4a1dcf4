//! The definition, written to be read.

use burn::tensor::{DType, Tensor};

/// See [`super::rms_norm`].
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let dtype = x.dtype();
    let wide = match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let x = x.cast(wide);
    let mean_square = x.clone().square().mean_dim(D - 1);
    let normed = (x / (mean_square + epsilon).sqrt()).cast(dtype);
    (normed.cast(wide) * weight.cast(wide).unsqueeze()).cast(dtype)
}

/// See [`super::zero_centered_rms_norm`].
pub fn zero_centered_rms_norm<const D: usize>(
    x: Tensor<D>,
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
    let normed = x / (mean_square + epsilon).sqrt();
    (normed * (weight.cast(wide) + 1.0).unsqueeze()).cast(dtype)
}
