//! Root-mean-square norm times an activated gate, as one operation which keeps nothing but its
//! inputs for the gradient.

mod autodiff;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

pub(crate) use autodiff::forward as autodiff_forward;

use crate::{ArgumentError, TreeNnOps};
use burn_tree_kit::check::Check;

/// `weight * cast(x * rsqrt(mean(x^2) + epsilon)) * silu(gate)` over the last dimension:
/// `x [.., D]`, `gate [.., D]`, `weight [D]` -> `[.., D]` in the dtype of `x`. A Gated DeltaNet's
/// output goes through this norm, head by head.
///
/// Computed in at least f32; the normalised value is rounded to the dtype of `x`, which `gate`
/// shares, before it is multiplied by the weight, which may have another. `silu(z) = z / (1 + e^-z)`.
/// Differentiable in all tensors; the gradient of the weight is summed in a fixed order.
///
/// CubeCL runtimes have kernels for f32, f16 and bf16, for rows that the units of a cube can hold;
/// the rest runs Burn's primitives (`tracing` says which, target `burn_tree_nn`, level debug).
///
/// # Panics
/// With the text of the error if [`try_gated_rms_norm`] refuses the arguments.
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

/// As [`gated_rms_norm`], with an error for arguments that do not fit.
///
/// # Errors
/// If a tensor's shape, dtype or device does not fit the others, or `epsilon` is not positive and
/// normal in f32 (f64 if `x` is).
pub fn try_gated_rms_norm<const D: usize>(
    x: Tensor<D>,
    gate: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
) -> Result<Tensor<D>, ArgumentError> {
    let check = Check {
        op: "gated_rms_norm",
    };
    let shape = x.dims();
    let size = shape[D - 1];
    check.not_empty("x", &shape)?;
    check.shape("gate", &gate.dims(), &shape, "shape of x")?;
    check.shape("weight", &weight.dims(), &[size], "last dimension of x")?;
    check.float("x", x.dtype())?;
    check.same_dtype("gate", gate.dtype(), "x", x.dtype())?;
    check.float("weight", weight.dtype())?;
    check.same_device("gate", gate.device(), "x", x.device())?;
    check.same_device("weight", weight.device(), "x", x.device())?;
    check.epsilon(epsilon, x.dtype())?;
    let rows = shape[..D - 1].iter().product();
    let y = <Dispatch as TreeNnOps>::gated_rms_norm(
        x.reshape([rows, size]).into_dispatch(),
        gate.reshape([rows, size]).into_dispatch(),
        weight.into_dispatch(),
        epsilon,
    );
    Ok(Tensor::<2>::from_dispatch(y).reshape(shape))
}
