//! Sums and maxima of rows that several units share.

// Kernels have no `is_multiple_of`.
#![allow(clippy::manual_is_multiple_of)]

use cubecl::prelude::*;

/// How the units of a cube share rows: each group of `lanes` neighbouring units has one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowGroups {
    /// Units of a cube.
    pub units: u32,
    /// Units of a group, a power of two.
    pub lanes: u32,
    /// Units that exchange values without a barrier: [`plane_width`](crate::cube::plane_width), or
    /// 1.
    pub plane: u32,
}

impl RowGroups {
    /// Groups of a cube.
    pub fn groups(&self) -> usize {
        (self.units / self.lanes) as usize
    }
}

/// The sum of `value` over the units of each group, in a fixed order, in all units of the group.
/// All units of the cube must call it.
#[cube]
pub fn row_sum(value: f32, #[comptime] rows: RowGroups) -> f32 {
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

/// The largest `value` among the units of each group, in all units of the group. All units of the
/// cube must call it.
#[cube]
pub fn row_max(value: f32, #[comptime] rows: RowGroups) -> f32 {
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
