//! The shape of the kernels that walk along runs, what each of their units works on, and where the
//! states of that are.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::arguments::{RunLists, Sizes};
use super::blocks::*;
use super::rows::*;

/// No slot, in lists of slots.
pub(crate) const NO_SLOT: u32 = -1i32 as u32;
/// A state of zeros, in lists of entries.
pub(crate) const NO_ENTRY: u32 = -1i32 as u32;
/// The first initial state, in lists of entries; the next ones count down.
pub(crate) const FIRST_INITIAL: u32 = -2i32 as u32;
/// The largest number of a slot.
pub(crate) const LAST_SLOT: u32 = i32::MAX as u32;

/// Compile-time shape of the kernels along paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PathConfig {
    /// Numbers of a key, a multiple of 64.
    pub key_dim: usize,
    /// Numbers of a value, a multiple of 64.
    pub value_dim: usize,
    /// Planes that compute: 2 or 4. As many others copy.
    pub planes: usize,
    /// Windows whose inputs are in shared memory at a time, at least 2.
    pub stages: usize,
}

impl PathConfig {
    /// Units of a cube.
    pub(crate) const fn units(self) -> usize {
        2 * self.copying()
    }

    /// Units that copy, the last of the cube.
    pub(crate) const fn copying(self) -> usize {
        self.planes * PLANE
    }

    /// Value columns of a cube.
    pub(crate) const fn columns(self) -> usize {
        16 * self.planes
    }

    /// Cubes per path and head.
    pub(crate) const fn slices(self) -> usize {
        self.value_dim / self.columns()
    }

    /// Bytes of a window's rows of keys in shared memory.
    pub(crate) const fn key_tile(self) -> usize {
        tile_bytes(ROWS, self.key_dim)
    }

    /// Bytes of a window's rows of the cube's value columns in shared memory.
    pub(crate) const fn slice_tile(self) -> usize {
        tile_bytes(ROWS, self.columns())
    }

    /// Bytes of `key_tiles` and `slice_tiles` tiles and two numbers per row of a window, for all
    /// stages.
    pub(crate) const fn stage_bytes(self, key_tiles: usize, slice_tiles: usize) -> usize {
        key_tiles * self.key_tile() + slice_tiles * self.slice_tile() + 2 * 4 * ROWS
    }

    /// Bytes in which planes turn states into rows of 16-bit numbers.
    pub(crate) const fn staging_bytes(self) -> usize {
        self.planes * tile_bytes(16, self.key_dim)
    }
}

/// What a unit works on: value columns of one head along a run.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Place {
    pub run: u32,
    /// First window of the run.
    pub first: u32,
    /// One past its last window.
    pub end: u32,
    /// Value head.
    pub head: u32,
    pub value_heads: u32,
    pub key_head: u32,
    /// Number of the cube's slice of value columns.
    pub slice: u32,
    /// First value column of the cube.
    pub first_column: u32,
    /// First value column of the plane.
    pub column: u32,
    /// Whether the unit copies. Others compute.
    pub copies: bool,
    /// Number of the unit among those that do the same.
    pub unit: u32,
    pub plane: u32,
    pub lane: u32,
}

/// The place of this unit: cubes are the slices of value columns of the first head of run
/// `first_run`, of the next head, .., of the next run.
#[cube]
pub(crate) fn place(
    runs: &RunLists,
    sizes: &Sizes,
    first_run: u32,
    #[comptime] config: PathConfig,
) -> Place {
    let slices = comptime!(config.slices() as u32);
    let copying = comptime!(config.copying() as u32);
    let slice = CUBE_POS_X % slices;
    let head = CUBE_POS_X / slices % sizes.value_heads;
    let run = first_run + CUBE_POS_X / slices / sizes.value_heads;
    let unit = UNIT_POS_X % copying;
    let plane = unit / 32;
    let first_column = slice * comptime!(config.columns() as u32);
    let first = runs.offsets[run as usize];
    let end = runs.offsets[run as usize + 1];
    Place {
        run,
        first,
        end,
        head,
        value_heads: sizes.value_heads,
        key_head: head / (sizes.value_heads / sizes.key_heads),
        slice,
        first_column,
        column: first_column + plane * 16,
        copies: UNIT_POS_X >= copying,
        unit,
        plane,
        lane: UNIT_POS_X % 32,
    }
}

/// The address of the first number of a lane's part of state number `state` of those at `states`,
/// which are kept as `[.., HV, DK, DV]` f32 numbers.
#[cube]
pub(crate) fn state_address(
    states: u64,
    state: u32,
    place: &Place,
    #[comptime] config: PathConfig,
) -> u64 {
    let (key_dim, value_dim) = comptime!((config.key_dim as u32, config.value_dim as u32));
    let number = u64::cast_from(state) * u64::cast_from(place.value_heads);
    let number = number + u64::cast_from(place.head);
    let in_state = place.lane % 4 * 2 * value_dim + place.column + place.lane / 4;
    states
        + number * comptime!(4 * key_dim as u64 * value_dim as u64)
        + u64::cast_from(in_state * 4)
}

/// The plane's rows of its state number `state` of those at `states`, which are kept rounded and
/// transposed, as `[.., HV, DV, DK]`.
#[cube]
pub(crate) fn rounded_state_rows(
    states: u64,
    state: u32,
    place: &Place,
    #[comptime] config: PathConfig,
) -> HeadRows {
    let number = u64::cast_from(state) * u64::cast_from(place.value_heads);
    let number = number + u64::cast_from(place.head);
    let row = number * comptime!(config.value_dim as u64) + u64::cast_from(place.column);
    HeadRows {
        first: states + row * comptime!(2 * config.key_dim as u64),
        row_bytes: u64::cast_from(comptime!(2 * config.key_dim as u32)),
    }
}
