//! The public function.

use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn_tree_kit::check::ArgumentError;

use super::check::check;
use crate::ops::TreeNnOps;

/// The logarithm of the decay of each token and value head,
/// `-exp(a_log) * softplus(a + dt_bias)`: `a [B, N, HV]`, `a_log [HV]`, `dt_bias [HV]` ->
/// `[B, N, HV]`. It is never positive.
///
/// The tensors may have different dtypes; the result is computed and returned in f32, or f64 if `a`
/// is f64. Differentiable in all tensors; the gradients of `a_log` and `dt_bias` are summed in a
/// fixed order.
///
/// Yang et al., *Gated Delta Networks* (2024); the parametrisation is that of Mamba 2.
///
/// # Panics
/// If [`try_decay_gate`] returns an error, with its message.
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

/// As [`decay_gate`], but returns an error for invalid arguments.
///
/// # Errors
/// If the shape, dtype or device of a tensor does not match the others, or a dimension of `a` is 0.
pub fn try_decay_gate(
    a: Tensor<3>,
    a_log: Tensor<1>,
    dt_bias: Tensor<1>,
) -> Result<Tensor<3>, ArgumentError> {
    check(&a, &a_log, &dt_bias)?;
    let [batch, rows, heads] = a.dims();
    let gate = <Dispatch as TreeNnOps>::decay_gate(
        a.reshape([batch * rows, heads]).into_dispatch(),
        a_log.into_dispatch(),
        dt_bias.into_dispatch(),
    );
    Ok(Tensor::<2>::from_dispatch(gate).reshape([batch, rows, heads]))
}
