//! What both query kernels do: their products have queries as rows and keys as columns.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::arguments::{Lists, Mask, QueryTile, Sizes, query_tile};
use super::super::products::hide_unless;
use super::arguments::Scores;
use super::blocks::*;

/// The tile of a cube, of `config.heads` heads.
#[cube]
pub(super) fn tile_of_cube(
    lists: &Lists,
    sizes: &Sizes,
    #[comptime] config: BackwardConfig,
) -> QueryTile {
    let heads = comptime!(config.heads as u32);
    let head_tiles = sizes.kv_heads * sizes.group / heads;
    let first_head = CUBE_POS_X % head_tiles * heads;
    query_tile(
        lists,
        sizes,
        CUBE_POS_X / head_tiles,
        first_head,
        QUERY_ROWS,
    )
}

/// Statistics of the rows that a lane holds numbers of.
#[derive(CubeType)]
pub(super) struct StatisticsOfLane {
    /// Log-sum-exps to base 2.
    pub log_sum_exp: Array<f32>,
    /// Minus the sums of output times gradient.
    pub start: Array<f32>,
}

/// `tile_row`: the lane's first row in the tile.
#[cube]
pub(super) fn statistics_of_lane(
    statistics: &[f32],
    tile: &QueryTile,
    sizes: &Sizes,
    tile_row: u32,
    #[comptime] config: BackwardConfig,
) -> StatisticsOfLane {
    let rows = comptime!(2 * config.blocks);
    let query_rows = comptime!(QUERY_ROWS as u32);
    let padded_queries = sizes.n_queries.div_ceil(query_rows) * query_rows;
    let padded_rows = sizes.batches * (sizes.kv_heads * sizes.group) * padded_queries;
    let mut log_sum_exp = Array::<f32>::new(rows);
    let mut start = Array::<f32>::new(rows);
    #[unroll]
    for row in 0..rows {
        let tile_row = tile_row + comptime!((row / 2 * 16 + row % 2 * 8) as u32);
        let at = (tile.query_row + tile_row / query_rows) * padded_queries
            + tile.first
            + tile_row % query_rows;
        log_sum_exp[row] = statistics[at as usize];
        start[row] = statistics[(padded_rows + at) as usize];
    }
    StatisticsOfLane { log_sum_exp, start }
}

/// Turns products of queries and keys into the exponents of probabilities as powers of two.
#[cube]
pub(super) fn exponents_of_queries(
    products: &mut Array<Accumulator>,
    statistics: &StatisticsOfLane,
    scores: &Scores,
    #[comptime] product_tiles: usize,
    #[comptime] config: BackwardConfig,
) {
    #[unroll]
    for i in 0..comptime!(config.blocks * product_tiles) {
        let block = comptime!(i / product_tiles);
        let mut tile = products[i];
        #[unroll]
        for j in 0..4usize {
            let of_row = statistics.log_sum_exp[comptime!(2 * block + j / 2)];
            tile.insert(j, exponent(tile.extract(j), of_row, scores, config));
        }
        products[i] = tile;
    }
}

/// Sets the exponents of what is hidden to minus infinity.
///
/// `key`: the lane's first key, `row`: its first query row.
#[cube]
pub(super) fn hide_of_queries(
    exponents: &mut Array<Accumulator>,
    mask: &Mask,
    tile: &QueryTile,
    key: u32,
    row: u32,
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
            let index = tile.batch * tile.n_queries + min(row, tile.n_queries - 1);
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
        if key < tile.n_keys {
            let at = tile.batch * tile.n_keys + key;
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
            hide_unless(visible, exponents, at, element);
        }
    }
}

/// Writes a plane's sums times `scale` to the gradient: those of the tile's rows from `plane_row`
/// on. `rows`: where the plane stages them in shared memory.
#[cube]
pub(super) fn store_query_sums<E: Float>(
    sums: &Array<Accumulator>,
    gradient: &mut [Vector<u32, Const<4>>],
    rows: u32,
    scale: f32,
    plane_row: u32,
    tile: &QueryTile,
    #[comptime] config: BackwardConfig,
) {
    let (dim, blocks) = comptime!((config.head_dim, config.blocks));
    let query_rows = comptime!(QUERY_ROWS as u32);
    let lane = UNIT_POS_X % 32;
    stage_sums::<E>(sums, rows, lane, scale, dim, blocks);
    let plane_query = plane_row % query_rows;
    let at = tile.at(plane_row, tile.first + plane_query);
    store_rows(
        rows,
        output_address(gradient) + u64::cast_from(at) * comptime!(2 * dim as u64),
        lane,
        // Negative if all rows of the plane overhang.
        i32::cast_from(tile.valid_rows()) - i32::cast_from(plane_query),
        dim,
        comptime!(16 * blocks),
    );
}
