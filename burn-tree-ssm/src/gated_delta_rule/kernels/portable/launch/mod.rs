//! Launches of the kernels of one call.

mod backward;
mod call;
mod forward;

pub(super) use call::{Call, check_sizes};
