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

use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::prelude::{AddressType, CubeDim};

/// The width of indices into the largest of the tensors: 32 bits up to 2^32 elements.
pub(crate) fn address_type<const T: usize>(tensors: [&CubeTensor; T]) -> AddressType {
    let types = tensors.map(|tensor| tensor.required_address_type());
    types.into_iter().max().unwrap_or_default()
}

/// Units of a cube where every unit works for itself: those for large tensors, because kernels are
/// compiled for their number.
pub(crate) fn elementwise_dim(client: &Client) -> CubeDim {
    CubeDim::new(client, 1 << 16)
}
