//! Checks of the grouped product's arguments.

use burn::tensor::Tensor;
use burn_tree_kit::check::{ArgumentError, Check};

pub(super) fn check(
    x: &Tensor<2>,
    weight: &Tensor<3>,
    group_sizes: &[usize],
) -> Result<(), ArgumentError> {
    let check = Check {
        op: "grouped_linear",
    };
    let [rows, input] = x.dims();
    let [groups, _, output] = weight.dims();
    check.has_columns("x", &x.dims())?;
    check.not_empty("weight", &weight.dims())?;
    let expected = [groups, input, output];
    check.shape("weight", &weight.dims(), &expected, "columns of x")?;
    check.length(
        "group_sizes",
        group_sizes.len(),
        groups,
        "matrices of weight",
    )?;
    check.sum("group_sizes", group_sizes, rows, "rows of x")?;
    check.float("x", x.dtype())?;
    check.same_dtype("weight", weight.dtype(), "x", x.dtype())?;
    check.same_device("weight", weight.device(), "x", x.device())
}
