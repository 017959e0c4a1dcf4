//! Checks of the norm's arguments.

use burn::tensor::Tensor;
use burn_tree_kit::check::{ArgumentError, Check};

use crate::norm::{check_weight, check_x};

pub(super) fn check<const D: usize>(
    op: &'static str,
    x: &Tensor<D>,
    weight: &Tensor<1>,
    epsilon: f64,
) -> Result<(), ArgumentError> {
    let check = Check { op };
    check_x(check, x, epsilon)?;
    check_weight(check, weight, x)
}
