//! Layouts of rows in the registers of the units of a cube.

use cubecl::client::Client;
use cubecl::ir::VectorSize;
use cubecl::prelude::*;

use crate::cube::{RowGroups, plane_width, units_per_cube};

/// Preferred maximum of numbers of a row per unit.
const NUMBERS_PER_UNIT: usize = 32;

/// Maximum number of vectors of a row per unit. Wider rows have no kernel.
const MAX_LOADS: usize = 32;

/// How the vectors of a row are distributed over units: lane `l` of the row's group stores the
/// vectors `l`, `l + lanes`, `l + 2 lanes`, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowLayout {
    /// The groups of units, one per row.
    pub groups: RowGroups,
    /// Vectors per unit.
    pub loads: u32,
    /// Whether the row fills all of them, so that bounds checks are unnecessary.
    pub exact: bool,
}

impl RowLayout {
    /// A layout for rows of `width` vectors of `vector` numbers. `None` if a row does not fit into
    /// registers.
    pub fn new(client: &Client, width: usize, vector: VectorSize) -> Option<Self> {
        let units = units_per_cube(client);
        let plane = plane_width(client).min(units);
        // A group within a plane sums without barriers.
        let by_size = (width * vector)
            .div_ceil(NUMBERS_PER_UNIT)
            .next_power_of_two();
        let lanes = by_size
            .max(plane as usize)
            .min(width.next_power_of_two())
            .min(units as usize);
        let loads = width.div_ceil(lanes);
        (loads <= MAX_LOADS).then_some(Self {
            groups: RowGroups {
                units,
                lanes: lanes as u32,
                plane,
            },
            loads: loads as u32,
            exact: loads * lanes == width,
        })
    }
}

/// The vectors of row `row` of `values [rows, width]` (in vectors) of this unit, in the storage
/// dtype. Zeros for vectors past the end of the row, and everywhere unless `in_bounds`.
#[cube]
pub fn load_row<F: Float, N: Size>(
    values: &[Vector<F, N>],
    row: usize,
    in_bounds: bool,
    width: usize,
    #[comptime] layout: RowLayout,
) -> Array<Vector<F, N>> {
    let lanes = comptime!(layout.groups.lanes as usize);
    let lane = UNIT_POS as usize % lanes;
    let mut loaded = Array::<Vector<F, N>>::new(comptime!(layout.loads as usize));
    #[unroll]
    for load in 0..comptime!(layout.loads as usize) {
        let column = lane + load * lanes;
        let mut value = Vector::<F, N>::cast_from(0.0f32);
        if in_bounds && (layout.exact || column < width) {
            value = values[row * width + column];
        }
        loaded[load] = value;
    }
    loaded
}
