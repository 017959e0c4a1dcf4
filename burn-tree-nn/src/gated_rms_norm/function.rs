//! The public function.

use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn_tree_kit::check::ArgumentError;

use super::check::check;
use crate::ops::TreeNnOps;

/// `weight * cast(x * rsqrt(mean(x^2) + epsilon)) * silu(gate)` over the last dimension:
/// `x [.., D]`, `gate [.., D]`, `weight [D]` -> `[.., D]` in the dtype of `x`, where
/// `silu(z) = z / (1 + e^-z)`. A Gated DeltaNet applies this norm to its output, head by head.
///
/// `gate` has the dtype of `x`; `weight` may have another. Computed in f32, or f64 if `x` is f64;
/// the normalised value is rounded to the dtype of `x` before it is multiplied by the weight.
/// Differentiable in all tensors; the gradient of the weight is summed in a fixed order.
///
/// CubeCL runtimes have kernels for f32, f16 and bf16 and for rows that fit into registers; Burn's
/// primitives compute all other cases. A `tracing` event names the implementation
/// ([`burn_tree_kit::implementation::announce`]).
///
/// # Panics
/// If [`try_gated_rms_norm`] returns an error, with its message.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_tree_nn::gated_rms_norm;
///
/// let device = Device::flex();
/// let x = Tensor::<2>::from_floats([[3.0, -3.0]], &device);
/// let gate = Tensor::<2>::from_floats([[100.0, 0.0]], &device);
/// let y = gated_rms_norm(x, gate, Tensor::ones([2], &device), 1e-6);
/// let y = y.into_data().to_vec::<f32>().unwrap();
/// assert!((y[0] - 100.0).abs() < 1e-3 && y[1] == 0.0);
/// ```
pub fn gated_rms_norm<const D: usize>(
    x: Tensor<D>,
    gate: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    try_gated_rms_norm(x, gate, weight, epsilon).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`gated_rms_norm`], but returns an error for invalid arguments.
///
/// # Errors
/// If the shape, dtype or device of a tensor does not match the others, a dimension of `x` is 0, or
/// `epsilon` is not positive and normal in f32 (f64 if `x` is f64).
pub fn try_gated_rms_norm<const D: usize>(
    x: Tensor<D>,
    gate: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
) -> Result<Tensor<D>, ArgumentError> {
    check(&x, &gate, &weight, epsilon)?;
    let shape = x.dims();
    let size = shape[D - 1];
    let rows = shape[..D - 1].iter().product();
    let y = <Dispatch as TreeNnOps>::gated_rms_norm(
        x.reshape([rows, size]).into_dispatch(),
        gate.reshape([rows, size]).into_dispatch(),
        weight.into_dispatch(),
        epsilon,
    );
    Ok(Tensor::<2>::from_dispatch(y).reshape(shape))
}
