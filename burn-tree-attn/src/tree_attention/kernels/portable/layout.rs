//! How the kernels of a call are laid out for a device.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_tree_kit::dtype::at_least_f32;
use burn_tree_kit::implementation::Unavailable;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::call::Call;
use super::super::device_plan::{DevicePlan, Section};
use super::super::plan::TileShape;
use super::arguments::{KernelShape, ProblemLaunch};
use super::tile::Blocking;
use crate::tree_attention::options::AttentionSettings;

/// Units along the tile of queries, and along that of keys.
const QUERY_UNITS: usize = 16;
const KEY_UNITS: usize = 8;

/// Numbers of the results that a unit may hold in registers.
const MAX_RESULTS_PER_UNIT: usize = 128;

/// The kernels of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub tiles: TileShape,
    /// Query tiles stay.
    pub by_query: KernelShape,
    /// Key tiles stay.
    pub by_key: KernelShape,
}

impl Layout {
    /// The largest tiles that registers and shared memory allow.
    ///
    /// # Errors
    /// If none fits, or the device lacks a type.
    pub(super) fn new(
        properties: &DeviceProperties,
        dtype: DType,
        head_dim: usize,
        value_dim: usize,
        settings: Option<AttentionSettings>,
    ) -> Result<Self, Unavailable> {
        let compute = DType::from(at_least_f32(dtype));
        for dtype in [dtype, compute] {
            if !properties.supports_type(dtype_to_storage_type(dtype)) {
                return Err(Unavailable(format!("the device has no {dtype:?}")));
            }
        }
        let hardware = &properties.hardware;
        let units = (QUERY_UNITS * KEY_UNITS) as u32;
        if hardware.max_units_per_cube < units || hardware.max_cube_dim.0 < units {
            return Err(Unavailable(format!(
                "cubes have at most {} units there, {units} are needed",
                hardware.max_units_per_cube.min(hardware.max_cube_dim.0)
            )));
        }
        // At most 16 bytes, and a divisor of both dimensions.
        let fits = |vector: &usize| {
            vector * compute.size() <= 16
                && *vector <= hardware.max_vector_size
                && head_dim.is_multiple_of(*vector)
                && value_dim.is_multiple_of(*vector)
        };
        let vector = [4, 2].into_iter().find(fits).unwrap_or(1);
        let shared = hardware.max_shared_memory_size;
        [4, 2, 1]
            .into_iter()
            .map(|block| Self::with_block(block, vector, head_dim, value_dim, settings))
            .find(|layout| {
                let kernels = [layout.by_query, layout.by_key];
                layout.results_per_unit() <= MAX_RESULTS_PER_UNIT
                    && kernels.iter().all(|it| it.shared_bytes(compute.size()) <= shared)
            })
            .ok_or_else(|| {
                Unavailable(format!(
                    "head dimensions {head_dim} and {value_dim} in {dtype:?} need more registers or \
                     shared memory than a cube has (here {shared} bytes)"
                ))
            })
    }

    pub(super) fn with_block(
        block: usize,
        vector: usize,
        head_dim: usize,
        value_dim: usize,
        settings: Option<AttentionSettings>,
    ) -> Self {
        let shape = |unit_rows, lanes| KernelShape {
            blocking: Blocking {
                rows: block,
                columns: block,
                unit_rows,
                lanes,
                vector,
            },
            head_vectors: head_dim / vector,
            value_vectors: value_dim / vector,
            window: settings.is_some_and(|it| it.sliding_window.is_some()),
            softcap: settings.is_some_and(|it| it.softcap.is_some()),
        };
        Self {
            tiles: TileShape {
                query_rows: block * QUERY_UNITS,
                keys: block * KEY_UNITS,
            },
            by_query: shape(QUERY_UNITS, KEY_UNITS),
            by_key: shape(KEY_UNITS, QUERY_UNITS),
        }
    }

    /// Most numbers of results that a unit holds, over the three kernels.
    fn results_per_unit(&self) -> usize {
        let held = |shape: &KernelShape, vectors| {
            let blocking = &shape.blocking;
            blocking.rows * blocking.vectors_per_unit(vectors) * blocking.vector
        };
        let (by_query, by_key) = (&self.by_query, &self.by_key);
        held(by_query, by_query.widest())
            .max(held(by_key, by_key.head_vectors) + held(by_key, by_key.value_vectors))
    }
}

/// Which tiles stay.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Query,
    Key,
}

/// Launch arguments besides tensors.
pub(super) struct Launch {
    pub problem: ProblemLaunch,
    pub count: CubeCount,
    pub dim: CubeDim,
}

impl Launch {
    /// # Errors
    /// If there are too many cubes for one launch.
    pub(super) fn new(
        call: &Call<'_>,
        plan: &DevicePlan,
        side: Side,
        shape: &KernelShape,
    ) -> Result<Self, Unavailable> {
        let (dims, settings) = (call.dims, call.settings);
        let (tiles, heads, sections) = match side {
            Side::Query => (
                plan.n_query_tiles,
                dims.query_heads,
                [
                    Section::QueryOffsets,
                    Section::QueryEntries,
                    Section::QueryOrder,
                ],
            ),
            Side::Key => (
                plan.n_key_tiles,
                dims.kv_heads,
                [Section::KeyOffsets, Section::KeyEntries, Section::KeyOrder],
            ),
        };
        let [offsets, entries, order] = sections.map(|section| plan.start(section));
        let (most_x, most_y, _) = call.device.client().properties().hardware.max_cube_count;
        let cubes = tiles
            .checked_mul(heads)
            .and_then(|cubes| u32::try_from(cubes).ok())
            .filter(|&cubes| cubes.div_ceil(most_x) <= most_y)
            .ok_or_else(|| {
                Unavailable(format!(
                    "{tiles} tiles of {heads} heads are too many for one launch"
                ))
            })?;
        let width = cubes.min(most_x).max(1);
        let [_, computed] = elem_types(call.dtype);
        Ok(Self {
            problem: ProblemLaunch::new(
                dims.query_heads as u32,
                dims.kv_heads as u32,
                dims.queries as u32,
                dims.keys as u32,
                // Positions fit in 31 bits, so a larger window hides nothing.
                settings.sliding_window.unwrap_or(0).min(i32::MAX as usize) as u32,
                cubes,
                plan.start(Section::KeyStart),
                plan.start(Section::KeyEnd),
                plan.start(Section::KeyPosition),
                plan.start(Section::QueryPosition),
                offsets,
                entries,
                order,
                InputScalar::new(settings.scale, computed),
                InputScalar::new(settings.softcap.unwrap_or(1.0), computed),
            ),
            count: CubeCount::Static(width, cubes.div_ceil(width), 1),
            dim: CubeDim::new_1d(shape.blocking.units() as u32),
        })
    }
}

/// Element types of a kernel: stored, and computed with.
pub(super) fn elem_types(dtype: DType) -> [ElemType; 2] {
    [dtype, at_least_f32(dtype).into()].map(dtype_to_storage_type)
}
