//! The public function.

use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn_tree_kit::check::ArgumentError;

use super::check::check;
use crate::ops::TreeNnOps;

/// `x * rsqrt(sum(x^2) + epsilon)` over the last dimension: `x [.., D]` -> `[.., D]` in the dtype
/// of `x`. Computed in f32, or f64 if `x` is f64. A Gated DeltaNet normalises its queries and keys
/// with it.
///
/// A row of zeros stays zero and gets no gradient. Its true gradient, `grad / sqrt(epsilon)`, would
/// multiply rounding errors by 1000.
///
/// CubeCL runtimes have kernels for f32, f16 and bf16 and for rows that fit into registers; Burn's
/// primitives compute all other cases. A `tracing` event names the implementation
/// ([`burn_tree_kit::implementation::announce`]).
///
/// # Panics
/// If [`try_l2_norm`] returns an error, with its message.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_tree_nn::l2_norm;
///
/// let x = Tensor::<2>::from_floats([[3.0, 4.0], [0.0, 0.0]], &Device::flex());
/// let y = l2_norm(x, 1e-6).into_data().to_vec::<f32>().unwrap();
/// assert!((y[0] - 0.6).abs() < 1e-6 && (y[1] - 0.8).abs() < 1e-6);
/// assert_eq!(y[2..], [0.0, 0.0]);
/// ```
pub fn l2_norm<const D: usize>(x: Tensor<D>, epsilon: f64) -> Tensor<D> {
    try_l2_norm(x, epsilon).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`l2_norm`], but returns an error for invalid arguments.
///
/// # Errors
/// If `x` has a dimension of size 0 or is not a float tensor, or `epsilon` is not positive and
/// normal in f32 (f64 if `x` is f64).
pub fn try_l2_norm<const D: usize>(x: Tensor<D>, epsilon: f64) -> Result<Tensor<D>, ArgumentError> {
    check(&x, epsilon)?;
    let shape = x.dims();
    let size = shape[D - 1];
    let rows = shape[..D - 1].iter().product();
    let y = <Dispatch as TreeNnOps>::l2_norm(x.reshape([rows, size]).into_dispatch(), epsilon);
    Ok(Tensor::<2>::from_dispatch(y).reshape(shape))
}
