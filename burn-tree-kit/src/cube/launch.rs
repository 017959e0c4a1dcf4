//! Helpers for kernel launches and their tensors.

use burn::tensor::{DType, Shape};
use burn_cubecl::{
    kernel::into_contiguous,
    ops::numeric::{empty_device_contiguous_dtype, zeros_client},
    tensor::CubeTensor,
};
use cubecl::calculate_cube_count_elemwise;
use cubecl::client::Client;
use cubecl::features::Plane;
use cubecl::ir::{AddressType, ElemType, VectorSize};
use cubecl::prelude::*;

/// Maximum number of units per cube that all runtimes allow.
const MAX_UNITS: u32 = 256;

/// Whether kernels support tensors of these dtypes: f32, f16 and bf16, computed in f32. Burn's
/// primitives compute other dtypes (f64).
pub fn has_kernels(tensors: &[&CubeTensor]) -> bool {
    tensors
        .iter()
        .all(|tensor| matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16))
}

/// The element type of kernels for tensors of `dtype`.
pub fn elem(dtype: DType) -> ElemType {
    burn::backend::cubecl::dtype_to_storage_type(dtype)
}

/// A new contiguous tensor on the device of `near`. Its contents are undefined.
pub fn empty(near: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    let (client, device) = (near.client.clone(), near.device.clone());
    empty_device_contiguous_dtype(client, device, shape.into(), dtype)
}

/// A new contiguous tensor of zeros on the device of `near`. (Burn's own zeros may have gaps
/// between rows; kernels that assume contiguous tensors would write into them.)
pub fn zeros(near: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    let (client, device) = (near.client.clone(), near.device.clone());
    let shape = shape.into();
    // A single row has no gaps.
    let row = Shape::new([shape.num_elements()]);
    let row = zeros_client(client.clone(), device.clone(), row, dtype);
    CubeTensor::new_contiguous(client, device, shape, row.handle, dtype)
}

/// The tensors in contiguous form; only those that are not contiguous are copied.
pub fn contiguous<const N: usize>(tensors: [CubeTensor; N]) -> [CubeTensor; N] {
    tensors.map(into_contiguous)
}

/// Vector size: the largest that divides `width` and fits into the widest load of the narrowest of
/// `dtypes`.
pub fn vector_size(client: &Client, dtypes: &[DType], width: usize) -> VectorSize {
    let narrowest = dtypes.iter().map(|dtype| dtype.size()).min().unwrap_or(4);
    client
        .io_optimized_vector_sizes(narrowest)
        .filter(|size| width.is_multiple_of(*size))
        .max()
        .unwrap_or(1)
}

/// The integer type that can index each of these tensors.
pub fn address_type(tensors: &[&CubeTensor]) -> AddressType {
    tensors
        .iter()
        .map(|tensor| tensor.required_address_type())
        .max()
        .unwrap_or_default()
}

/// Units per cube, a power of two: 256, or fewer if the runtime allows fewer. On a CPU at most the
/// number of cores, because units wait for each other at barriers.
pub fn units_per_cube(client: &Client) -> u32 {
    let hardware = &client.properties().hardware;
    let most = hardware
        .max_units_per_cube
        .min(hardware.num_cpu_cores.unwrap_or(MAX_UNITS))
        .clamp(1, MAX_UNITS);
    1 << most.ilog2()
}

/// Units that can exchange values without a barrier: the least width of the runtime's planes, or 1
/// if it has no plane operations.
pub fn plane_width(client: &Client) -> u32 {
    let properties = client.properties();
    match properties.features.plane.contains(Plane::Ops) {
        true => 1 << properties.hardware.plane_size_min.max(1).ilog2(),
        false => 1,
    }
}

/// Launch size of `cubes` cubes of `units` units. More cubes may start; they must do nothing.
pub fn cubes(client: &Client, cubes: usize, units: u32) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new_1d(units);
    let count = calculate_cube_count_elemwise(client, cubes * units as usize, dim);
    (count, dim)
}

/// Launch size of at least `items` units. The units from `items` on must do nothing.
pub fn units(client: &Client, items: usize) -> (CubeCount, CubeDim) {
    let units = units_per_cube(client);
    cubes(client, items.div_ceil(units as usize), units)
}
