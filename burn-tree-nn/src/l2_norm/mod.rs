//! Rows of length one, as one operation which keeps nothing but its input for the
//! gradient.

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

/// `x * rsqrt(sum(x^2) + epsilon)` over the last dimension: `x [.., D]` -> `[.., D]` in the dtype
/// of `x`; computed in at least f32. A Gated DeltaNet's queries and keys are normalised so.
///
/// A row of zeros stays zero and gets no gradient: its true one, `grad / sqrt(epsilon)`, is of the
/// size of rounding errors times 1000.
///
/// CubeCL runtimes have kernels for f32, f16 and bf16, for rows that the units of a cube can hold;
/// the rest runs Burn's primitives (`tracing` says which, target `burn_tree_nn`, level debug).
///
/// # Panics
/// With the text of the error if [`try_l2_norm`] refuses the arguments.
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

/// As [`l2_norm`], with an error for arguments that do not fit.
///
/// # Errors
/// If `x` has a dimension of size 0 or is not of floats, or `epsilon` is not positive and
/// normal in f32 (f64 if `x` is).
pub fn try_l2_norm<const D: usize>(x: Tensor<D>, epsilon: f64) -> Result<Tensor<D>, ArgumentError> {
    let check = Check { op: "l2_norm" };
    let shape = x.dims();
    check.not_empty("x", &shape)?;
    check.float("x", x.dtype())?;
    check.epsilon(epsilon, x.dtype())?;
    let size = shape[D - 1];
    let rows = shape[..D - 1].iter().product();
    let y = <Dispatch as TreeNnOps>::l2_norm(x.reshape([rows, size]).into_dispatch(), epsilon);
    Ok(Tensor::<2>::from_dispatch(y).reshape(shape))
}
