//! The public function.

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn_tree_kit::check::ArgumentError;

use super::check::check;
use super::plan::GatherPlan;
use crate::ops::TreeNnOps;

/// Gathers rows, `output[i] = x[plan.indices()[i]]`: `x [R, D]` -> `[n, D]` in the dtype of `x`.
///
/// The gradient of a row is the sum over its reads, in a fixed order, in f32 (f64 if `x` is f64).
///
/// # Panics
/// If [`try_gather_rows`] returns an error, with its message.
///
/// # Example
/// ```
/// use std::sync::Arc;
///
/// use burn::tensor::{Device, Tensor};
/// use burn_tree_nn::{GatherPlan, gather_rows};
///
/// let x = Tensor::<2>::from_floats([[1.0], [2.0], [3.0]], &Device::flex());
/// let plan = Arc::new(GatherPlan::new(vec![2, 0, 2], 3)?);
/// let y = gather_rows(x, &plan).into_data();
/// assert_eq!(y.to_vec::<f32>().unwrap(), [3.0, 1.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn gather_rows(x: Tensor<2>, plan: &Arc<GatherPlan>) -> Tensor<2> {
    try_gather_rows(x, plan).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`gather_rows`], but returns an error for invalid arguments.
///
/// # Errors
/// If `x` does not have the number of rows of `plan`, has no columns, or is not a float tensor.
pub fn try_gather_rows(x: Tensor<2>, plan: &Arc<GatherPlan>) -> Result<Tensor<2>, ArgumentError> {
    check(&x, plan)?;
    if plan.indices().is_empty() {
        return Ok(x.slice_dim(0, 0..0));
    }
    Ok(Tensor::from_dispatch(<Dispatch as TreeNnOps>::gather_rows(
        x.into_dispatch(),
        plan.clone(),
    )))
}
