//! One matrix product per group of rows, as in the expert layers of a mixture of experts.

mod autodiff;
mod check;
mod function;
pub(crate) mod generic;
pub mod reference;

pub(crate) use autodiff::forward as autodiff_forward;
pub use function::{grouped_linear, try_grouped_linear};
