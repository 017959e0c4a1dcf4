//! CubeCL kernels.

// Forms that the language of kernels lacks, or in which it says something else than Rust does.
#![allow(
    clippy::assign_op_pattern,
    clippy::collapsible_if,
    clippy::extra_unused_type_parameters,
    clippy::if_same_then_else,
    clippy::manual_is_multiple_of,
    clippy::manual_swap
)]

pub(crate) mod attention;
pub(crate) mod rope;

use cubecl::client::Client;
use cubecl::prelude::CubeDim;

/// Units of a cube where every unit works for itself: those for large tensors, because kernels are
/// compiled for their number.
pub(crate) fn elementwise_dim(client: &Client) -> CubeDim {
    CubeDim::new(client, 1 << 16)
}
