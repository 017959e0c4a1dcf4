//! What both query kernels do: their products have queries as rows and keys as columns.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::arguments::Mask;
use super::blocks::*;

/// Sets the exponents of what is hidden to minus infinity.
///
/// `key`: the lane's first key, `row`: its first query row.
#[cube]
pub(super) fn hide_of_queries(
    exponents: &mut Array<Accumulator>,
    mask: &Mask,
    batch: u32,
    key: u32,
    row: u32,
    sizes: &Sizes,
    window: u32,
    #[comptime] product_tiles: usize,
    #[comptime] config: BackwardConfig,
) {
    let lane_rows = comptime!(2 * config.blocks);
    let mut positions = Array::<u32>::new(lane_rows);
    if comptime!(config.window) {
        #[unroll]
        for of_lane in 0..lane_rows {
            let row = row + comptime!((of_lane / 2 * 16 + of_lane % 2 * 8) as u32);
            // Rows past the last one see nothing anyway.
            let index = batch * sizes.n_queries + min(row, sizes.n_queries - 1);
            positions[of_lane] = mask.query_position[index as usize];
        }
    }
    #[unroll]
    for i in 0..comptime!(2 * product_tiles) {
        let (n, column) = comptime!((i / 2, i % 2));
        let key = key + comptime!((n * 8 + column) as u32);
        let mut start = 0u32;
        let mut seen = 0u32;
        let mut position = 0u32;
        if key < sizes.n_keys {
            let at = batch * sizes.n_keys + key;
            start = mask.key_start[at as usize];
            seen = mask.key_end[at as usize] - start;
            if comptime!(config.window) {
                position = mask.key_position[at as usize];
            }
        }
        #[unroll]
        for of_lane in 0..lane_rows {
            let (block, half) = comptime!((of_lane / 2, of_lane % 2));
            // Rows before the start wrap around to large numbers.
            let mut visible = row + comptime!((block * 16 + half * 8) as u32) - start < seen;
            if comptime!(config.window) {
                visible = visible && within_window(positions[of_lane], position, window);
            }
            let at = comptime!(block * product_tiles + n);
            let element = comptime!(2 * half + column);
            let mut tile = exponents[at];
            let hidden = f32::NEG_INFINITY;
            tile.insert(element, select(visible, tile.extract(element), hidden));
            exponents[at] = tile;
        }
    }
}
