//! Checks of the gate's arguments.

use burn::tensor::Tensor;
use burn_tree_kit::check::{ArgumentError, Check};

pub(super) fn check(
    a: &Tensor<3>,
    a_log: &Tensor<1>,
    dt_bias: &Tensor<1>,
) -> Result<(), ArgumentError> {
    let check = Check { op: "decay_gate" };
    let [_, _, heads] = a.dims();
    check.not_empty("a", &a.dims())?;
    check.float("a", a.dtype())?;
    for (name, tensor) in [("a_log", a_log), ("dt_bias", dt_bias)] {
        check.shape(name, &tensor.dims(), &[heads], "value heads of a")?;
        check.float(name, tensor.dtype())?;
        check.same_device(name, tensor.device(), "a", a.device())?;
    }
    Ok(())
}
