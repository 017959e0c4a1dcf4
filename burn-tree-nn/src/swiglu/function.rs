//! The public function.

use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn_tree_kit::check::ArgumentError;

use super::check::check;
use crate::ops::TreeNnOps;

/// `silu(gate) * up`, element by element, with `silu(x) = x / (1 + e^-x)`: `gate [..]`, `up [..]`
/// -> `[..]`, all of one shape and dtype.
///
/// `silu` is computed in f32, or f64 for f64 tensors, and rounded to the dtype before the product.
/// Differentiable in both tensors.
///
/// # Panics
/// If [`try_swiglu`] returns an error, with its message.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_tree_nn::swiglu;
///
/// let device = Device::flex();
/// let gate = Tensor::<1>::from_floats([0.0, 100.0], &device);
/// let y = swiglu(gate, Tensor::from_floats([5.0, 0.5], &device));
/// assert_eq!(y.into_data().to_vec::<f32>().unwrap(), [0.0, 50.0]);
/// ```
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    try_swiglu(gate, up).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`swiglu`], but returns an error for invalid arguments.
///
/// # Errors
/// If the shapes, dtypes or devices differ, or the tensors are not float tensors.
pub fn try_swiglu<const D: usize>(
    gate: Tensor<D>,
    up: Tensor<D>,
) -> Result<Tensor<D>, ArgumentError> {
    check(&gate, &up)?;
    if gate.shape().num_elements() == 0 {
        return Ok(gate);
    }
    Ok(Tensor::from_dispatch(<Dispatch as TreeNnOps>::swiglu(
        gate.into_dispatch(),
        up.into_dispatch(),
    )))
}
