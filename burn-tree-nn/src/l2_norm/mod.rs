//! Rows scaled to length one, as one operation. It keeps only its input for the backward pass.

mod autodiff;
mod check;
mod function;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;
pub mod reference;

pub(crate) use autodiff::forward as autodiff_forward;
pub use function::{l2_norm, try_l2_norm};
