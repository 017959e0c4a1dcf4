//! Matrix products of linear layers: rows times weights.

mod autodiff;
mod check;
mod function;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;
pub mod reference;
mod tensors;

pub(crate) use autodiff::{linear as autodiff_linear, linear_pair, linear_triple};
pub use function::{linear, linears, try_linear, try_linears};
pub use tensors::InputGradientTerm;
#[cfg(feature = "fusion")]
pub(crate) use tensors::InputGradientTermMetadata;
