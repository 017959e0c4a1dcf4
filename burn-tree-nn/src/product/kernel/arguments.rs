//! What kernels are given.

use burn_tree_kit::cube::warpgroup::map_address;
use cubecl::prelude::*;

use crate::product::Joined;
use crate::product::plan::{STEP, TILE_COLUMNS};

/// The right operand of one of several products.
#[derive(CubeType, CubeLaunch)]
pub(in crate::product) struct Right<E: Float> {
    /// Boxes of 256 columns of the result, or of 64 summed numbers.
    pub operand: TensorMap<E, Tiled>,
    /// The same with boxes of 64 columns.
    pub narrow: TensorMap<E, Tiled>,
    /// Where the product ends: with [`Joined::Sum`] among the steps, with [`Joined::Columns`] among
    /// the column tiles.
    pub end: u32,
}

/// Sizes of the result and its division into tiles.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(in crate::product) struct Problem {
    pub rows: u32,
    pub columns: u32,
    pub row_tiles: u32,
    pub column_tiles: u32,
    /// Of a tile.
    pub steps: u32,
    /// Tiles that are divided: the last ones if they become narrow, the first ones if they are split
    /// along the sums.
    pub divided: u32,
}

/// Where cubes leave parts of sums for others.
#[derive(CubeType, CubeLaunch)]
pub(in crate::product) struct Exchange {
    /// `[cubes, 2, 64 * 256]` sums of a warpgroup, those of a unit 16 bytes after 16 bytes.
    pub parts: Box<[f32]>,
    /// `[cubes, 2]` whether they are there.
    pub flags: Box<[u32]>,
}

/// Where the operands of a step come from.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Source {
    pub left: u64,
    pub right: u64,
    pub narrow_right: u64,
    /// The first summed number.
    pub summed: u32,
    /// The first column in the right operand.
    pub column: u32,
}

/// The operands of step number `step` of a tile of column tile number `column_tile`.
#[cube]
pub(super) fn source<E: Float>(
    left: &Sequence<TensorMap<E, Tiled>>,
    right: &Sequence<Right<E>>,
    step: u32,
    column_tile: u32,
    #[comptime] joined: Joined,
) -> Source {
    let mut left_map = map_address::<E>(left.index(0usize));
    let mut right_map = map_address::<E>(&right.index(0usize).operand);
    let mut narrow_map = map_address::<E>(&right.index(0usize).narrow);
    let place = if comptime!(joined == Joined::Sum) {
        step
    } else {
        column_tile
    };
    let mut start = 0u32;
    #[unroll]
    for index in 1..right.len() {
        let before = right.index(comptime!(index - 1)).end;
        if place >= before {
            if comptime!(joined == Joined::Sum) {
                left_map = map_address::<E>(left.index(index));
            }
            right_map = map_address::<E>(&right.index(index).operand);
            narrow_map = map_address::<E>(&right.index(index).narrow);
            start = before;
        }
    }
    let (step, column_tile) = if comptime!(joined == Joined::Sum) {
        (step - start, column_tile)
    } else {
        (step, column_tile - start)
    };
    Source {
        left: left_map,
        right: right_map,
        narrow_right: narrow_map,
        summed: step * STEP as u32,
        column: column_tile * TILE_COLUMNS as u32,
    }
}
