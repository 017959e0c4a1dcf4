//! Checks of the arguments, before dispatch.

use std::sync::Arc;

use burn::tensor::Tensor;
use burn_tree_kit::check::{ArgumentError, Check};

use crate::recurrence::{ConvolutionPlan, TreeRecurrence};

/// The plan of the convolution, if the tensors fit each other and the recurrence.
pub(super) fn check(
    check: Check,
    x: &Tensor<3>,
    weight: &Tensor<2>,
    recurrence: &TreeRecurrence,
    initial_tails: Option<&Tensor<3>>,
) -> Result<Arc<ConvolutionPlan>, ArgumentError> {
    let ([_, _, channels], [_, kernel_size]) = (x.dims(), weight.dims());
    let (batch, rows) = (recurrence.batch_size(), recurrence.row_length());
    let reason = "batch and rows of the recurrence";
    check.shape("x", &x.dims(), &[batch, rows, channels], reason)?;
    check.not_empty("x", &x.dims())?;
    check.not_empty("weight", &weight.dims())?;
    let reason = "a kernel for each channel of x";
    check.shape("weight", &weight.dims(), &[channels, kernel_size], reason)?;
    check.float("x", x.dtype())?;
    check.float("weight", weight.dtype())?;
    check.same_device("weight", weight.device(), "x", x.device())?;

    let states = recurrence.n_initial_states();
    let expected = [states, kernel_size - 1, channels];
    match initial_tails {
        Some(tails) => {
            let reason = "initial states of the recurrence, kernel size - 1, channels of x";
            check.shape("initial_tails", &tails.dims(), &expected, reason)?;
            check.same_dtype("initial_tails", tails.dtype(), "x", x.dtype())?;
            check.same_device("initial_tails", tails.device(), "x", x.device())?;
        }
        None if states > 0 && kernel_size > 1 => {
            return Err(ArgumentError::Missing {
                op: check.op,
                tensor: "initial_tails",
                expected: format!("{expected:?}: roots of the recurrence have initial states"),
            });
        }
        None => {}
    }
    check.plan(recurrence.convolution(kernel_size))
}
