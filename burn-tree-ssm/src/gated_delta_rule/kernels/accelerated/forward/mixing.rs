//! The inverse of a window from blocks, a column of blocks a plane, and mixing from it.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::blocks::*;
use super::super::decays::*;
use super::super::words::*;
use super::inverse::*;
use super::local::LocalWindow;

/// A plane's column of blocks of the inverse, from that on the diagonal down.
#[derive(CubeType)]
pub(super) struct BlockColumn {
    /// Two accumulators a block, transposed.
    sums: Array<Accumulator>,
    /// The blocks as sums of two left operands each.
    upper: Array<Fragment>,
    lower: Array<Fragment>,
}

/// A column of blocks to be filled.
#[cube]
pub(super) fn new_columns() -> BlockColumn {
    BlockColumn {
        sums: Array::<Accumulator>::new(comptime!(2 * TILES)),
        upper: Array::<Fragment>::new(TILES),
        lower: Array::<Fragment>::new(TILES),
    }
}

/// Where a transposed block of the plane's column of blocks goes in a tile, in the first row of
/// blocks.
#[cube]
fn place_in_tile(window: &LocalWindow) -> u32 {
    window.lane / 4 * comptime!(row_stride(ROWS) as u32) + window.plane * 32 + window.lane % 4 * 4
}

/// Inverts the plane's block on the diagonal, and leaves it with the factors, too.
#[cube]
pub(super) fn invert_diagonal(column: &mut BlockColumn, window: &LocalWindow) {
    let lane = window.lane;
    invert_block(window.block, lane);
    let from = window.block + lane / 4 * comptime!(4 * BLOCK_STRIDE as u32) + lane % 4 * 8;
    #[unroll]
    for half in 0..2usize {
        let mut tile = Accumulator::empty();
        #[unroll]
        for below in 0..2usize {
            let pair = load_pair(from, comptime!(32 * half + 32 * BLOCK_STRIDE * below));
            let (low, high) = (pair.extract(0usize), pair.extract(1usize));
            tile.insert(comptime!(2 * below), f32::reinterpret(low));
            tile.insert(comptime!(2 * below + 1), f32::reinterpret(high));
        }
        column.sums[half] = tile;
    }
    let (upper, lower) = split_left(column.sums[0], column.sums[1]);
    column.upper[0] = upper;
    column.lower[0] = lower;
    let in_tile = place_in_tile(window);
    let to = window.factors + window.plane * comptime!(16 * row_stride(ROWS) as u32) + in_tile;
    store_transposed(to, upper);
    store_transposed(to + SQUARE as u32, lower);
}

/// Fills the plane's blocks of the inverse above the diagonal with zeros.
#[cube]
pub(super) fn clear_above_diagonal(window: &LocalWindow) {
    let stride = comptime!(row_stride(ROWS) as u32);
    let lane = window.lane;
    let above = window.inverse + lane / 2 * stride + window.plane * 32 + lane % 2 * CHUNK as u32;
    for tile in 0..min(window.plane, window.tiles) {
        let to = above + tile * comptime!(16 * stride);
        store_chunk(to, 0usize, Fragment::new(0u32));
    }
}

/// Computes the blocks below that on the diagonal, one after another.
#[cube]
pub(super) fn invert_below_diagonal(column: &mut BlockColumn, window: &LocalWindow) {
    let stride = comptime!(row_stride(ROWS));
    // Down the column of blocks, transposed: block (plane + d, plane).
    let by_columns = window.factors
        + lane_offset_by_columns(window.lane, ROWS)
        + window.plane * comptime!((16 * stride + 32) as u32);
    #[unroll]
    for d in 1..TILES {
        if window.plane + (d as u32) < window.tiles {
            let mut sum = Array::<Accumulator>::new(2usize);
            clear(&mut sum, 2usize);
            #[unroll]
            for e in 0..d {
                let at = comptime!(16 * d * stride + 32 * e);
                add_split(&mut sum, column.upper[e], column.lower[e], by_columns, at);
            }
            let (upper, lower) = split_left(sum[0], sum[1]);
            let mut product = Array::<Accumulator>::new(2usize);
            clear(&mut product, 2usize);
            let at = comptime!(16 * d * stride + 32 * d);
            add_split(&mut product, upper, lower, by_columns, at);
            column.sums[2 * d] = -product[0];
            column.sums[2 * d + 1] = -product[1];
            let (upper, lower) = split_left(column.sums[2 * d], column.sums[2 * d + 1]);
            column.upper[d] = upper;
            column.lower[d] = lower;
        }
    }
}

/// Writes the plane's column of blocks, rounded, to the tile of the inverse, and times decays and
/// betas to that of mixing.
#[cube]
pub(super) fn store_columns<E: Float>(
    column: &BlockColumn,
    window: &LocalWindow,
    numbers: &RowNumbers,
) {
    let in_tile = place_in_tile(window);
    // Rows of the transposed blocks are columns of the window.
    let mut column_betas = Array::<f32>::new(2usize);
    let mut column_sums = Array::<f32>::new(2usize);
    let mut column_ends = Array::<u32>::new(2usize);
    #[unroll]
    for below in 0..2usize {
        let offset = comptime!(32 * below);
        column_betas[below] = load_number(numbers.betas + window.row * 4, offset);
        column_sums[below] = load_number(numbers.sums + window.row * 4, offset);
        column_ends[below] = load_word(numbers.ends + window.row * 4, offset);
    }
    #[unroll]
    for d in 0..TILES {
        if window.plane + (d as u32) < window.tiles {
            let block = window.plane + d as u32;
            let to = in_tile + block * comptime!(16 * row_stride(ROWS) as u32);
            let of_inverse = pack_left::<E>(column.sums[2 * d], column.sums[2 * d + 1]);
            store_transposed(window.inverse + to, of_inverse);
            let mut mixed = Array::<Accumulator>::new(2usize);
            #[unroll]
            for half in 0..2usize {
                let tile = column.sums[2 * d + half];
                let first = block * 16 + window.lane % 4 * 2 + comptime!(8 * half as u32);
                let row_sums = load_pair(numbers.sums + first * 4, 0usize);
                let mut of_tile = Accumulator::empty();
                #[unroll]
                for i in 0..4usize {
                    let below = comptime!(i / 2);
                    let of_row = first + comptime!((i % 2) as u32);
                    let row_sum = f32::reinterpret(row_sums.extract(comptime!(i % 2)));
                    let above = window.row + comptime!(8 * below as u32) <= of_row
                        && of_row < column_ends[below];
                    let decay = select(above, exp2(row_sum - column_sums[below]), 0.0f32);
                    of_tile.insert(i, tile.extract(i) * (column_betas[below] * decay));
                }
                mixed[half] = of_tile;
            }
            store_transposed(window.mixing + to, pack_left::<E>(mixed[0], mixed[1]));
        }
    }
}
