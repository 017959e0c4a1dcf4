//! Checks of the norm's arguments.

use burn::tensor::Tensor;
use burn_tree_kit::check::{ArgumentError, Check};

use crate::norm::check_x;

pub(super) fn check<const D: usize>(x: &Tensor<D>, epsilon: f64) -> Result<(), ArgumentError> {
    let check = Check { op: "l2_norm" };
    check.not_empty("x", &x.dims())?;
    check_x(check, x, epsilon)
}
