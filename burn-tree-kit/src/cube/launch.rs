//! Shapes of launches, and the tensors that go into them.

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

/// Most units of a cube: what every runtime allows.
const MAX_UNITS: u32 = 256;

/// Whether kernels exist for these tensors: storage in f32, f16 or bf16, computing in f32. Others
/// (f64) run the implementations from Burn's primitives.
pub fn has_kernels(tensors: &[&CubeTensor]) -> bool {
    tensors
        .iter()
        .all(|tensor| matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16))
}

/// How kernels name the dtype of a tensor's storage.
pub fn elem(dtype: DType) -> ElemType {
    burn::backend::cubecl::dtype_to_storage_type(dtype)
}

/// A new tensor like `near`, with rows of storage after one another, of which nothing is set.
pub fn empty(near: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    let (client, device) = (near.client.clone(), near.device.clone());
    empty_device_contiguous_dtype(client, device, shape.into(), dtype)
}

/// As [`empty`], all zeros. (Burn's own zeros may have gaps between rows, which kernels that count
/// on none would write to.)
pub fn zeros(near: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    let (client, device) = (near.client.clone(), near.device.clone());
    let shape = shape.into();
    // A single row has no gaps.
    let row = Shape::new([shape.num_elements()]);
    let row = zeros_client(client.clone(), device.clone(), row, dtype);
    CubeTensor::new_contiguous(client, device, shape, row.handle, dtype)
}

/// The same tensors with rows after one another, copied where they are not.
pub fn contiguous<const N: usize>(tensors: [CubeTensor; N]) -> [CubeTensor; N] {
    tensors.map(into_contiguous)
}

/// Elements that a unit loads at a time: as many as make the widest load of the narrowest dtype
/// and divide `width`.
pub fn vector_size(client: &Client, dtypes: &[DType], width: usize) -> VectorSize {
    let narrowest = dtypes.iter().map(|dtype| dtype.size()).min().unwrap_or(4);
    client
        .io_optimized_vector_sizes(narrowest)
        .filter(|size| width.is_multiple_of(*size))
        .max()
        .unwrap_or(1)
}

/// What indices into all of these tensors fit in.
pub fn address_type(tensors: &[&CubeTensor]) -> AddressType {
    tensors
        .iter()
        .map(|tensor| tensor.required_address_type())
        .max()
        .unwrap_or_default()
}

/// Units of a cube, a power of two: 256, or fewer where the runtime has fewer (on a CPU, no more
/// than it has cores, since they wait for each other at barriers).
pub fn units_per_cube(client: &Client) -> u32 {
    let hardware = &client.properties().hardware;
    let most = hardware
        .max_units_per_cube
        .min(hardware.num_cpu_cores.unwrap_or(MAX_UNITS))
        .clamp(1, MAX_UNITS);
    1 << most.ilog2()
}

/// Units that may exchange values without a barrier: planes are at least this wide. 1 where the
/// runtime has no such operations.
pub fn plane_width(client: &Client) -> u32 {
    let properties = client.properties();
    match properties.features.plane.contains(Plane::Ops) {
        true => 1 << properties.hardware.plane_size_min.max(1).ilog2(),
        false => 1,
    }
}

/// A launch of `cubes` cubes; there may be more, which must do nothing.
pub fn cubes(client: &Client, cubes: usize, units: u32) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new_1d(units);
    let count = calculate_cube_count_elemwise(client, cubes * units as usize, dim);
    (count, dim)
}

/// A launch of at least `items` units.
pub fn units(client: &Client, items: usize) -> (CubeCount, CubeDim) {
    let units = units_per_cube(client);
    cubes(client, items.div_ceil(units as usize), units)
}
