//! What both key and value kernels do: their products have keys as rows and queries as columns.

use cubecl::prelude::*;

use super::blocks::*;
use tree_training_cube::matrix::*;

/// Addresses of what is streamed through the stages, of head 0 of the cube's group.
#[derive(CubeType, Clone, Copy)]
pub(super) struct QuerySide {
    pub query: u64,
    pub grad_output: u64,
    pub statistics: u64,
    /// From log-sum-exps to sums of output times gradient, in bytes.
    pub second_statistic: u64,
    pub n_queries: u32,
    /// Rows of a head in the statistics.
    pub padded_queries: u32,
}

/// Starts the copies of the statistics of the query tile at row `first` of a head.
#[cube]
pub(super) fn copy_statistics(side: &QuerySide, first: u32, head: u32, statistics: u32) {
    let chunks = comptime!((4 * QUERY_ROWS / CHUNK) as u32);
    if UNIT_POS_X < 2 * chunks {
        let row =
            u64::cast_from(head) * u64::cast_from(side.padded_queries) + u64::cast_from(first);
        let mut from = side.statistics + row * 4;
        if UNIT_POS_X >= chunks {
            from += side.second_statistic;
        }
        from += u64::cast_from(UNIT_POS_X % chunks * CHUNK as u32);
        copy_chunk(from, 0usize, statistics + UNIT_POS_X * CHUNK as u32, 0usize);
    }
}

/// Turns products of keys and queries into the exponents of probabilities as powers of two.
/// `statistics`: address of the log-sum-exps of the lane's first columns.
#[cube]
pub(super) fn exponents_of_keys(
    products: &mut Array<Accumulator>,
    statistics: u32,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
) {
    let product_tiles = comptime!(QUERY_ROWS / 8);
    #[unroll]
    for n in 0..product_tiles {
        let pair = load_pair(statistics, comptime!(n * 32));
        let (first, second) = (
            f32::reinterpret(pair.extract(0usize)),
            f32::reinterpret(pair.extract(1usize)),
        );
        #[unroll]
        for block in 0..comptime!(config.blocks) {
            let at = comptime!(block * product_tiles + n);
            let tile = products[at];
            let mut exponents = Accumulator::empty();
            exponents.insert(
                0usize,
                exponent(tile.extract(0usize), first, scores, config),
            );
            exponents.insert(
                1usize,
                exponent(tile.extract(1usize), second, scores, config),
            );
            exponents.insert(
                2usize,
                exponent(tile.extract(2usize), first, scores, config),
            );
            exponents.insert(
                3usize,
                exponent(tile.extract(3usize), second, scores, config),
            );
            products[at] = exponents;
        }
    }
}

/// Probabilities times the slope of the softcap at their scores.
#[cube]
pub(super) fn cap_slopes_of_keys(
    powers: Accumulator,
    exponents: Accumulator,
    statistics: u32,
    #[comptime] offset: usize,
    scores: &Scores,
) -> Accumulator {
    let pair = load_pair(statistics, offset);
    let (first, second) = (
        f32::reinterpret(pair.extract(0usize)),
        f32::reinterpret(pair.extract(1usize)),
    );
    let mut slopes = Accumulator::empty();
    slopes.insert(
        0usize,
        powers.extract(0usize) * cap_slope(exponents.extract(0usize), first, scores),
    );
    slopes.insert(
        1usize,
        powers.extract(1usize) * cap_slope(exponents.extract(1usize), second, scores),
    );
    slopes.insert(
        2usize,
        powers.extract(2usize) * cap_slope(exponents.extract(2usize), first, scores),
    );
    slopes.insert(
        3usize,
        powers.extract(3usize) * cap_slope(exponents.extract(3usize), second, scores),
    );
    slopes
}

/// Sets the exponents of what is hidden to minus infinity.
///
/// `key`: the lane's first key, `row`: its first query row.
#[cube]
pub(super) fn hide_of_keys(
    exponents: &mut Array<Accumulator>,
    key_start: &[u32],
    key_end: &[u32],
    key_position: &[u32],
    query_position: &[u32],
    batch: u32,
    key: u32,
    row: u32,
    n_keys: u32,
    n_queries: u32,
    window: u32,
    #[comptime] config: BackwardConfig,
) {
    let product_tiles = comptime!(QUERY_ROWS / 8);
    let lane_keys = comptime!(2 * config.blocks);
    let mut starts = Array::<u32>::new(lane_keys);
    let mut lengths = Array::<u32>::new(lane_keys);
    let mut positions = Array::<u32>::new(lane_keys);
    #[unroll]
    for of_lane in 0..lane_keys {
        let key = key + comptime!((of_lane / 2 * 16 + of_lane % 2 * 8) as u32);
        starts[of_lane] = 0u32;
        lengths[of_lane] = 0u32;
        if key < n_keys {
            let at = batch * n_keys + key;
            starts[of_lane] = key_start[at as usize];
            lengths[of_lane] = key_end[at as usize] - starts[of_lane];
            if comptime!(config.window) {
                positions[of_lane] = key_position[at as usize];
            }
        }
    }
    #[unroll]
    for i in 0..comptime!(2 * product_tiles) {
        let (n, column) = comptime!((i / 2, i % 2));
        let row = row + comptime!((n * 8 + column) as u32);
        let mut position = 0u32;
        if comptime!(config.window) {
            let index = batch * n_queries + min(row, n_queries - 1);
            position = query_position[index as usize];
        }
        #[unroll]
        for of_lane in 0..lane_keys {
            let (block, half) = comptime!((of_lane / 2, of_lane % 2));
            // Rows before the start wrap around to large numbers.
            let mut visible = row - starts[of_lane] < lengths[of_lane];
            if comptime!(config.window) {
                visible = visible && within_window(position, positions[of_lane], window);
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
