//! Checks of the norm's arguments.

use burn::tensor::Tensor;
use burn_tree_kit::check::{ArgumentError, Check};

use crate::norm::{check_weight, check_x};

pub(super) fn check<const D: usize>(
    x: &Tensor<D>,
    gate: &Tensor<D>,
    weight: &Tensor<1>,
    epsilon: f64,
) -> Result<(), ArgumentError> {
    let check = Check {
        op: "gated_rms_norm",
    };
    check.not_empty("x", &x.dims())?;
    check_x(check, x, epsilon)?;
    check.shape("gate", &gate.dims(), &x.dims(), "shape of x")?;
    check.same_dtype("gate", gate.dtype(), "x", x.dtype())?;
    check.same_device("gate", gate.device(), "x", x.device())?;
    check_weight(check, weight, x)
}
