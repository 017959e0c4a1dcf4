//! Checks of the activation's arguments.

use burn::tensor::Tensor;
use burn_tree_kit::check::{ArgumentError, Check};

pub(super) fn check<const D: usize>(gate: &Tensor<D>, up: &Tensor<D>) -> Result<(), ArgumentError> {
    let check = Check { op: "swiglu" };
    check.float("gate", gate.dtype())?;
    check.shape("up", &up.dims(), &gate.dims(), "shape of gate")?;
    check.same_dtype("up", up.dtype(), "gate", gate.dtype())?;
    check.same_device("up", up.device(), "gate", gate.device())
}
