//! Checks of the arguments of all norms.

use burn::tensor::Tensor;
use burn_tree_kit::check::{ArgumentError, Check};

/// Checks `x [.., D]` and `epsilon`. There may be no rows.
pub(crate) fn check_x<const D: usize>(
    check: Check,
    x: &Tensor<D>,
    epsilon: f64,
) -> Result<(), ArgumentError> {
    check.has_columns("x", &x.dims())?;
    check.float("x", x.dtype())?;
    check.epsilon(epsilon, x.dtype())
}

/// Checks `weight [D]`, which may have another dtype than `x [.., D]`.
pub(crate) fn check_weight<const D: usize>(
    check: Check,
    weight: &Tensor<1>,
    x: &Tensor<D>,
) -> Result<(), ArgumentError> {
    let size = x.dims()[D - 1];
    check.shape("weight", &weight.dims(), &[size], "last dimension of x")?;
    check.float("weight", weight.dtype())?;
    check.same_device("weight", weight.device(), "x", x.device())
}
