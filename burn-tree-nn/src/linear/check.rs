//! What the arguments of linear layers must be.

use burn::tensor::Tensor;
use burn_tree_kit::check::{ArgumentError, Check};

pub(super) fn check<const D: usize>(
    op: &'static str,
    x: &Tensor<D>,
    weight: &Tensor<2>,
) -> Result<(), ArgumentError> {
    let check = Check { op };
    let [_, output] = weight.dims();
    check.has_columns("x", &x.dims())?;
    check.not_empty("weight", &weight.dims())?;
    let expected = [x.dims()[D - 1], output];
    check.shape("weight", &weight.dims(), &expected, "columns of x")?;
    check.float("x", x.dtype())?;
    check.same_dtype("weight", weight.dtype(), "x", x.dtype())?;
    check.same_device("weight", weight.device(), "x", x.device())
}
