//! Checks of the gather's arguments.

use burn::tensor::Tensor;
use burn_tree_kit::check::{ArgumentError, Check};

use super::plan::GatherPlan;

pub(super) fn check(x: &Tensor<2>, plan: &GatherPlan) -> Result<(), ArgumentError> {
    let check = Check { op: "gather_rows" };
    let [_, width] = x.dims();
    check.has_columns("x", &x.dims())?;
    check.shape("x", &x.dims(), &[plan.rows(), width], "rows of the plan")?;
    check.float("x", x.dtype())
}
