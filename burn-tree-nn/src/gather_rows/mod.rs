//! Gathers rows of a matrix, with a gradient that is summed in a fixed order.
//!
//! Embeddings and the dispatch to experts read some rows many times. Burn's own gradient of such a
//! gather is either serial or a sum in arbitrary order.

mod autodiff;
mod check;
mod function;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;
#[cfg(feature = "cubecl-backend")]
mod lists;
mod plan;
pub mod reference;
mod sums;

pub(crate) use autodiff::forward as autodiff_forward;
pub use function::{gather_rows, try_gather_rows};
pub use plan::{GatherError, GatherPlan};
