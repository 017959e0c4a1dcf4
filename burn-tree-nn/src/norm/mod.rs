//! Shared code of the norms over rows.

mod check;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;

pub(crate) use check::{check_weight, check_x};
