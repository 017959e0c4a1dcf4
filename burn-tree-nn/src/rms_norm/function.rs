//! The public functions.

use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn_tree_kit::check::ArgumentError;

use super::check::check;
use super::scale::NormScale;
use crate::ops::TreeNnOps;

/// `y = weight * cast(x * rsqrt(mean(x^2) + epsilon))` over the last dimension: `x [.., D]`,
/// `weight [D]` -> `[.., D]` in the dtype of `x`.
///
/// Computed in f32, or f64 if `x` is f64. The normalised value is rounded to the dtype of `x`
/// before it is multiplied by the weight, which may have another dtype. Differentiable in both
/// tensors; the gradient of the weight is summed in a fixed order.
///
/// # Panics
/// If [`try_rms_norm`] returns an error, with its message.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_tree_nn::rms_norm;
///
/// let device = Device::flex();
/// let x = Tensor::<2>::from_floats([[3.0, -3.0]], &device);
/// let y = rms_norm(x, Tensor::from_floats([1.0, 2.0], &device), 1e-6);
/// let y = y.into_data().to_vec::<f32>().unwrap();
/// assert!((y[0] - 1.0).abs() < 1e-6 && (y[1] + 2.0).abs() < 1e-6);
/// ```
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    try_rms_norm(x, weight, epsilon).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`rms_norm`], but returns an error for invalid arguments.
///
/// # Errors
/// If the shape, dtype or device of a tensor does not match the other, the last dimension of `x` is
/// 0, or `epsilon` is not positive and normal in f32 (f64 if `x` is f64).
pub fn try_rms_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
) -> Result<Tensor<D>, ArgumentError> {
    check("rms_norm", &x, &weight, epsilon)?;
    Ok(norm(x, weight, epsilon, NormScale::Weight))
}

/// As [`rms_norm`], but scales by one plus the weight: `y = cast((1 + weight) * x * rsqrt(mean(x^2)
/// + epsilon))`.
///
/// Only the result is rounded to the dtype of `x`.
///
/// # Panics
/// If [`try_zero_centered_rms_norm`] returns an error, with its message.
pub fn zero_centered_rms_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    try_zero_centered_rms_norm(x, weight, epsilon).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`zero_centered_rms_norm`], but returns an error for invalid arguments.
///
/// # Errors
/// As [`try_rms_norm`].
pub fn try_zero_centered_rms_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
) -> Result<Tensor<D>, ArgumentError> {
    check("zero_centered_rms_norm", &x, &weight, epsilon)?;
    Ok(norm(x, weight, epsilon, NormScale::OnePlusWeight))
}

/// Runs the norm with checked arguments.
fn norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
    scale: NormScale,
) -> Tensor<D> {
    let shape = x.dims();
    let size = shape[D - 1];
    let rows = shape[..D - 1].iter().product::<usize>();
    if rows == 0 {
        return x;
    }
    let (y, _inverse_rms) = <Dispatch as TreeNnOps>::rms_norm(
        x.reshape([rows, size]).into_dispatch(),
        weight.into_dispatch(),
        epsilon,
        scale,
    );
    Tensor::<2>::from_dispatch(y).reshape(shape)
}
