//! CubeCL kernels.

pub(crate) mod attention;
pub(crate) mod rope;

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::AddressType;

/// The width of indices into the largest of the tensors: 32 bits up to 2^32 elements.
pub(crate) fn address_type<const T: usize>(tensors: [&CubeTensor; T]) -> AddressType {
    let types = tensors.map(|tensor| tensor.required_address_type());
    types.into_iter().max().unwrap_or_default()
}
