//! The gate of a Gated DeltaNet as one operation, which keeps nothing but its inputs for the
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

/// The logarithm of the decay of each token and value head:
/// `-exp(a_log) * softplus(a + dt_bias)` for `a [B, N, HV]`, `a_log [HV]`, `dt_bias [HV]` ->
/// `[B, N, HV]`, never positive.
///
/// Computed and returned in at least f32, whatever the dtypes, which may differ. Differentiable in
/// all tensors; the gradients of `a_log` and `dt_bias` are summed in a fixed order.
///
/// Yang et al., *Gated Delta Networks* (2024); the parametrisation is Mamba 2's.
///
/// # Panics
/// With the text of the error if [`try_decay_gate`] refuses the arguments.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_tree_nn::decay_gate;
///
/// let device = Device::flex();
/// let a = Tensor::<3>::zeros([1, 1, 2], &device);
/// let a_log = Tensor::<1>::from_floats([0.0, 1.0], &device);
/// let gate = decay_gate(a, a_log, Tensor::zeros([2], &device));
/// let gate = gate.into_data().to_vec::<f32>().unwrap();
/// assert!((gate[0] + 2f32.ln()).abs() < 1e-6);
/// assert!((gate[1] + 1f32.exp() * 2f32.ln()).abs() < 1e-6);
/// ```
pub fn decay_gate(a: Tensor<3>, a_log: Tensor<1>, dt_bias: Tensor<1>) -> Tensor<3> {
    try_decay_gate(a, a_log, dt_bias).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`decay_gate`], with an error for arguments that do not fit.
///
/// # Errors
/// If a tensor's shape, dtype or device does not fit the others.
pub fn try_decay_gate(
    a: Tensor<3>,
    a_log: Tensor<1>,
    dt_bias: Tensor<1>,
) -> Result<Tensor<3>, ArgumentError> {
    let check = Check { op: "decay_gate" };
    let [batch, rows, heads] = a.dims();
    check.not_empty("a", &a.dims())?;
    check.float("a", a.dtype())?;
    for (name, tensor) in [("a_log", &a_log), ("dt_bias", &dt_bias)] {
        check.shape(name, &tensor.dims(), &[heads], "value heads of a")?;
        check.float(name, tensor.dtype())?;
        check.same_device(name, tensor.device(), "a", a.device())?;
    }
    let gate = <Dispatch as TreeNnOps>::decay_gate(
        a.reshape([batch * rows, heads]).into_dispatch(),
        a_log.into_dispatch(),
        dt_bias.into_dispatch(),
    );
    Ok(Tensor::<2>::from_dispatch(gate).reshape([batch, rows, heads]))
}
