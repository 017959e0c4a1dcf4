//! Root-mean-square norm as one operation. It keeps its inputs and one number per row for the
//! backward pass.

mod autodiff;
mod check;
mod function;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;
#[cfg(feature = "flex")]
pub(crate) mod native;
pub mod reference;
mod scale;

pub(crate) use autodiff::forward as autodiff_forward;
pub use function::{rms_norm, try_rms_norm, try_zero_centered_rms_norm, zero_centered_rms_norm};
pub use scale::NormScale;
