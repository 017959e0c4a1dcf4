//! Rows of a matrix by index, with a gradient that is summed in a fixed order.
//!
//! Embeddings and expert dispatch read rows many times; Burn's own gradient of such a gather is
//! either serial or a sum in arbitrary order.

mod autodiff;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;
mod plan;
pub mod reference;

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

pub use plan::{GatherError, GatherPlan};

use crate::TreeNnOps;

pub(crate) use autodiff::forward as autodiff_forward;

/// Gathers rows: `x [R, D]` -> `[n, D]` with `output[i] = x[plan.indices()[i]]`.
///
/// The gradient of a row is the sum over its reads in a fixed order, in at least f32.
///
/// # Panics
///
/// If `x` does not have the number of rows that `plan` was made for.
pub fn gather_rows(x: Tensor<2>, plan: &Arc<GatherPlan>) -> Tensor<2> {
    let [rows, _] = x.dims();
    assert_eq!(
        rows,
        plan.rows(),
        "gather_rows: x has {rows} rows, the plan {}",
        plan.rows()
    );
    if plan.indices().is_empty() {
        return x.slice_dim(0, 0..0);
    }
    Tensor::from_dispatch(<Dispatch as TreeNnOps>::gather_rows(
        x.into_dispatch(),
        plan.clone(),
    ))
}
