//! What the kernels for CubeCL runtimes share: launch shapes, sums over units, lists on devices.

// Kernels have no `is_multiple_of`.
#![allow(clippy::manual_is_multiple_of)]

use std::sync::{Arc, Mutex};

use burn::tensor::{DType, Shape};
use burn_cubecl::{
    CubeDevice, kernel::into_contiguous, ops::numeric::empty_device_contiguous_dtype,
    tensor::CubeTensor,
};
use cubecl::calculate_cube_count_elemwise;
use cubecl::client::Client;
use cubecl::features::Plane;
use cubecl::ir::{AddressType, ElemType, VectorSize};
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Most units of a cube: what every runtime allows.
const MAX_UNITS: u32 = 256;

/// Whether kernels exist for these tensors: storage in f32, f16 or bf16, computing in f32. Others
/// (f64) run the implementations from Burn's primitives.
pub(crate) fn has_kernels(tensors: &[&CubeTensor]) -> bool {
    tensors
        .iter()
        .all(|tensor| matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16))
}

/// Tells who asks (target `burn_tree_train`, level debug) which implementation of an operation
/// runs.
pub(crate) fn announce(op: &'static str, implementation: &'static str) {
    tracing::debug!(target: "burn_tree_train", op, implementation);
}

pub(crate) fn elem(dtype: DType) -> ElemType {
    burn::backend::cubecl::dtype_to_storage_type(dtype)
}

/// A new tensor like `near`, with rows of storage after one another, of which nothing is set.
pub(crate) fn empty(near: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    let (client, device) = (near.client.clone(), near.device.clone());
    empty_device_contiguous_dtype(client, device, shape.into(), dtype)
}

pub(crate) fn contiguous<const N: usize>(tensors: [CubeTensor; N]) -> [CubeTensor; N] {
    tensors.map(into_contiguous)
}

/// Elements that a unit loads at a time: as many as make the widest load of the narrowest dtype
/// and divide `width`.
pub(crate) fn vector_size(client: &Client, dtypes: &[DType], width: usize) -> VectorSize {
    let narrowest = dtypes.iter().map(|dtype| dtype.size()).min().unwrap_or(4);
    client
        .io_optimized_vector_sizes(narrowest)
        .filter(|size| width.is_multiple_of(*size))
        .max()
        .unwrap_or(1)
}

/// What indices into all of these tensors fit in.
pub(crate) fn address_type(tensors: &[&CubeTensor]) -> AddressType {
    tensors
        .iter()
        .map(|tensor| tensor.required_address_type())
        .max()
        .unwrap_or_default()
}

/// Units of a cube, a power of two: 256, or fewer where the runtime has fewer (on a CPU, no more
/// than it has cores, since they wait for each other at barriers).
pub(crate) fn units_per_cube(client: &Client) -> u32 {
    let hardware = &client.properties().hardware;
    let most = hardware
        .max_units_per_cube
        .min(hardware.num_cpu_cores.unwrap_or(MAX_UNITS))
        .clamp(1, MAX_UNITS);
    1 << most.ilog2()
}

/// Units that may exchange values without a barrier: planes are at least this wide. 1 where the
/// runtime has no such operations.
pub(crate) fn plane_width(client: &Client) -> u32 {
    let properties = client.properties();
    match properties.features.plane.contains(Plane::Ops) {
        true => 1 << properties.hardware.plane_size_min.max(1).ilog2(),
        false => 1,
    }
}

/// A launch of `cubes` cubes; there may be more, which must do nothing.
pub(crate) fn cubes(client: &Client, cubes: usize, units: u32) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new_1d(units);
    let count = calculate_cube_count_elemwise(client, cubes * units as usize, dim);
    (count, dim)
}

/// A launch of at least `items` units.
pub(crate) fn units(client: &Client, items: usize) -> (CubeCount, CubeDim) {
    let units = units_per_cube(client);
    cubes(client, items.div_ceil(units as usize), units)
}

/// How the units of a cube share rows: groups of `lanes` units work on a row each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowGroups {
    /// Units of a cube.
    pub(crate) units: u32,
    /// Units of a row, a power of two.
    pub(crate) lanes: u32,
    /// See [`plane_width`].
    pub(crate) plane: u32,
}

impl RowGroups {
    /// Rows of a cube.
    pub(crate) fn groups(&self) -> usize {
        (self.units / self.lanes) as usize
    }
}

/// The sum of `value` over the `lanes` units of each row, in the same order every time. All units
/// of the cube must arrive.
#[cube]
pub(crate) fn row_sum(value: f32, #[comptime] rows: RowGroups) -> f32 {
    let within = comptime!(rows.lanes.min(rows.plane));
    let mut sum = value;
    #[unroll]
    for step in 0..comptime!(within.ilog2()) {
        sum += plane_shuffle_xor(sum, comptime!(1u32 << step));
    }
    if comptime!(rows.lanes > within) {
        let parts = comptime!((rows.lanes / within) as usize);
        let mut shared = Shared::<[f32]>::new_slice(comptime!((rows.units / within) as usize));
        if UNIT_POS % within == 0 {
            shared[(UNIT_POS / within) as usize] = sum;
        }
        sync_cube();
        let first = (UNIT_POS / rows.lanes) as usize * parts;
        sum = shared[first];
        for part in 1..parts {
            sum += shared[first + part];
        }
        sync_cube();
    }
    sum
}

/// The largest `value` among the `lanes` units of each row. All units of the cube must arrive.
#[cube]
pub(crate) fn row_max(value: f32, #[comptime] rows: RowGroups) -> f32 {
    let within = comptime!(rows.lanes.min(rows.plane));
    let mut largest = value;
    #[unroll]
    for step in 0..comptime!(within.ilog2()) {
        largest = largest.max(plane_shuffle_xor(largest, comptime!(1u32 << step)));
    }
    if comptime!(rows.lanes > within) {
        let parts = comptime!((rows.lanes / within) as usize);
        let mut shared = Shared::<[f32]>::new_slice(comptime!((rows.units / within) as usize));
        if UNIT_POS % within == 0 {
            shared[(UNIT_POS / within) as usize] = largest;
        }
        sync_cube();
        let first = (UNIT_POS / rows.lanes) as usize * parts;
        largest = shared[first];
        for part in 1..parts {
            largest = largest.max(shared[first + part]);
        }
        sync_cube();
    }
    largest
}

/// Lists of a plan on the devices that have used it.
pub(crate) struct DeviceCache<T>(Arc<Mutex<Vec<(CubeDevice, T)>>>);

impl<T: Clone> DeviceCache<T> {
    /// The lists on the device of `near`, put there by `upload` the first time.
    pub(crate) fn get(&self, near: &CubeTensor, upload: impl FnOnce(&Client) -> T) -> T {
        // A panic while uploading leaves the list as it was.
        let mut entries = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, lists)) = entries.iter().find(|(device, _)| *device == near.device) {
            return lists.clone();
        }
        let lists = upload(&near.client);
        entries.push((near.device.clone(), lists.clone()));
        lists
    }
}

impl<T> Clone for DeviceCache<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for DeviceCache<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> std::fmt::Debug for DeviceCache<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DeviceCache")
    }
}

/// Copies add nothing to a plan.
impl<T> PartialEq for DeviceCache<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for DeviceCache<T> {}

/// Integers on a device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceList {
    handle: Handle,
    length: usize,
}

impl DeviceList {
    pub(crate) fn new(client: &Client, values: &[u32]) -> Self {
        Self {
            handle: client.create_from_slice(u32::as_bytes(values)),
            length: values.len(),
        }
    }

    pub(crate) fn arg(&self) -> BufferArg {
        // SAFETY: the buffer was made from as many values.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.length) }
    }
}
