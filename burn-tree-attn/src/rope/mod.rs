//! Rotary embeddings at given positions.

pub(crate) mod autodiff;
mod check;
mod function;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;
#[cfg(feature = "flex")]
pub(crate) mod native;
pub(crate) mod reference;
pub(crate) mod scaling;
pub(crate) mod settings;

pub use function::{rope, try_rope};
pub use scaling::{Llama3Scaling, RopeScaling, YarnScaling};
pub use settings::{RopeConfig, RopeDirection, RopePairing, RopeSettings};
