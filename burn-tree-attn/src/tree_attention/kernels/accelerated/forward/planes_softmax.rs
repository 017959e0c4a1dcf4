//! Online softmax of a plane, whose scores and sums are accumulators: from products of queries and
//! keys to sums of values.

use cubecl::prelude::*;

use super::super::arguments::*;
use super::super::products::*;
use super::config::ForwardConfig;
use super::softmax::*;
use burn_tree_kit::cube::matrix::*;

/// Turns products into scores.
#[cube]
pub(super) fn map_scores(
    scores: &mut Array<Accumulator>,
    factor: f32,
    #[comptime] config: ForwardConfig,
) {
    if comptime!(config.scores != ScoreMap::Plain) {
        #[unroll]
        for i in 0..comptime!(config.blocks() * config.key_rows / 8) {
            let mut mapped = Accumulator::empty();
            #[unroll]
            for j in 0..4usize {
                let score = scores[i].extract(j);
                mapped.insert(j, mapped_score(score, factor, config.scores));
            }
            scores[i] = mapped;
        }
    }
}

/// Sets the scores of keys that a row does not see to minus infinity.
///
/// `intervals`: address of the stage's intervals, plus 8 for every column pair of the lane;
/// `tile_row`: the lane's first row in the tile.
#[cube]
pub(super) fn mask_scores(
    scores: &mut Array<Accumulator>,
    intervals: u32,
    mask: &Mask,
    tile: &QueryTile,
    tile_row: u32,
    window: u32,
    #[comptime] config: ForwardConfig,
) {
    let lane_rows = comptime!(2 * config.blocks());
    let score_tiles = comptime!(config.key_rows / 8);
    let rows = rows_of_lane(mask, tile, tile_row, lane_rows, config.window);
    #[unroll]
    for n in 0..score_tiles {
        let keys = key_pair(intervals, n, comptime!(config.key_rows * 4), config.window);
        #[unroll]
        for row in 0..lane_rows {
            let (block, half) = comptime!((row / 2, row % 2));
            let at = comptime!(block * score_tiles + n);
            #[unroll]
            for column in 0..2usize {
                let visible = keys.seen_by(&rows, row, column, window, config.window);
                hide_unless(visible, scores, at, comptime!(2 * half + column));
            }
        }
    }
}

/// Raises the maxima to those of the scores and rescales the sums, if some row of the plane grew by
/// more than the slack.
#[cube]
pub(super) fn raise_maxima(
    scores: &Array<Accumulator>,
    sums: &mut Array<Accumulator>,
    running: &mut RunningRows,
    scale_log2: f32,
    #[comptime] config: ForwardConfig,
) {
    let lane_rows = comptime!(2 * config.blocks());
    let score_tiles = comptime!(config.key_rows / 8);
    let output_tiles = comptime!(config.head_dim / 8);
    let mut next_maximum = Array::<f32>::new(lane_rows);
    let mut grows = false;
    #[unroll]
    for row in 0..lane_rows {
        let (block, half) = comptime!((row / 2, row % 2));
        let mut highest = running.maximum[row];
        #[unroll]
        for n in 0..score_tiles {
            let tile = scores[comptime!(block * score_tiles + n)];
            highest = max(highest, tile.extract(comptime!(2 * half)));
            highest = max(highest, tile.extract(comptime!(2 * half + 1)));
        }
        let highest = row_max(highest);
        next_maximum[row] = highest;
        grows = grows || running.grows(row, highest, scale_log2);
    }
    if plane_agrees_any(grows) {
        #[unroll]
        for row in 0..lane_rows {
            let (block, half) = comptime!((row / 2, row % 2));
            let factor = running.raise(row, next_maximum[row], scale_log2);
            #[unroll]
            for n in 0..output_tiles {
                let at = comptime!(block * output_tiles + n);
                let mut sum = sums[at];
                sum.insert(
                    comptime!(2 * half),
                    sum.extract(comptime!(2 * half)) * factor,
                );
                sum.insert(
                    comptime!(2 * half + 1),
                    sum.extract(comptime!(2 * half + 1)) * factor,
                );
                sums[at] = sum;
            }
        }
    }
}

/// Turns scores into powers of two relative to their row's maximum, and adds them to its total.
#[cube]
pub(super) fn scores_to_powers(
    scores: &mut Array<Accumulator>,
    running: &mut RunningRows,
    scale_log2: f32,
    #[comptime] config: ForwardConfig,
) {
    let score_tiles = comptime!(config.key_rows / 8);
    #[unroll]
    for row in 0..comptime!(2 * config.blocks()) {
        let (block, half) = comptime!((row / 2, row % 2));
        let shift = running.maximum[row] * scale_log2;
        #[unroll]
        for n in 0..score_tiles {
            let at = comptime!(block * score_tiles + n);
            let mut tile = scores[at];
            let first = exp2(tile.extract(comptime!(2 * half)) * scale_log2 - shift);
            let second = exp2(tile.extract(comptime!(2 * half + 1)) * scale_log2 - shift);
            running.add(row, first, second);
            tile.insert(comptime!(2 * half), first);
            tile.insert(comptime!(2 * half + 1), second);
            scores[at] = tile;
        }
    }
}

/// Adds the products of powers and values to the sums.
#[cube]
pub(super) fn add_values<E: Float>(
    sums: &mut Array<Accumulator>,
    powers: &Array<Accumulator>,
    value_address: u32,
    #[comptime] config: ForwardConfig,
) {
    let (dim, blocks) = comptime!((config.head_dim, config.blocks()));
    let score_tiles = comptime!(config.key_rows / 8);
    #[unroll]
    for k in 0..comptime!(config.key_rows / 16) {
        let mut left = Array::<Fragment>::new(blocks);
        #[unroll]
        for block in 0..blocks {
            let at = comptime!(block * score_tiles + 2 * k);
            left[block] = pack_left::<E>(powers[at], powers[at + 1]);
        }
        add_sixteen_rows::<E>(sums, &left, 0usize, 1usize, value_address, k, dim, blocks);
    }
}
