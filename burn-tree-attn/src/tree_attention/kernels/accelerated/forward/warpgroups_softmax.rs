//! Online softmax of a plane of a warpgroup, whose scores and sums are vectors: as
//! [`planes_softmax`](super::planes_softmax), for the two rows that a lane holds numbers of.

use cubecl::prelude::*;

use super::super::arguments::*;
use super::super::stage::*;
use super::softmax::*;
use burn_tree_kit::cube::matrix::*;

/// Scores from products, as [`ScoreMap`] says, unless that is `Plain`.
#[cube]
pub(super) fn mapped_scores<N: Size>(
    products: Vector<f32, N>,
    factor: f32,
    #[comptime] scores: ScoreMap,
) -> Vector<f32, N> {
    let mut mapped = Vector::<f32, N>::empty();
    #[unroll]
    for i in 0..comptime!(STAGE_ROWS / 2) {
        mapped.insert(i, mapped_score(products.extract(i), factor, scores));
    }
    mapped
}

/// Scores with minus infinity for the keys of one half of a stage that a row does not see; the
/// arguments are those of the kernel of single planes.
#[cube]
pub(super) fn mask_scores<N: Size>(
    scores: Vector<f32, N>,
    intervals: u32,
    #[comptime] half: usize,
    mask: &Mask,
    tile: &QueryTile,
    tile_row: u32,
    length: u32,
    #[comptime] window: bool,
) -> Vector<f32, N> {
    let rows = rows_of_lane(mask, tile, tile_row, 2usize, window);
    let mut masked = scores;
    #[unroll]
    for block in 0..comptime!(TILE_ROWS / 8) {
        let n = comptime!(half * TILE_ROWS / 8 + block);
        let keys = key_pair(intervals, n, comptime!(STAGE_ROWS * 4), window);
        #[unroll]
        for row in 0..2usize {
            #[unroll]
            for column in 0..2usize {
                let visible = keys.seen_by(&rows, row, column, length, window);
                let at = comptime!(4 * n + 2 * row + column);
                masked.insert(at, select(visible, scores.extract(at), f32::NEG_INFINITY));
            }
        }
    }
    masked
}

/// Raises the maxima to those of the scores and returns the sums, rescaled if some row of the plane
/// grew by more than the slack.
#[cube]
pub(super) fn raise_maxima<N: Size, S: Size>(
    sums: Vector<f32, N>,
    scores: Vector<f32, S>,
    running: &mut RunningRows,
    scale_log2: f32,
    #[comptime] head_dim: usize,
) -> Vector<f32, N> {
    let mut next_maximum = Array::<f32>::new(2usize);
    let mut grows = false;
    #[unroll]
    for row in 0..2usize {
        let mut highest = running.maximum[row];
        #[unroll]
        for n in 0..comptime!(STAGE_ROWS / 8) {
            highest = max(highest, scores.extract(comptime!(4 * n + 2 * row)));
            highest = max(highest, scores.extract(comptime!(4 * n + 2 * row + 1)));
        }
        let highest = row_max(highest);
        next_maximum[row] = highest;
        grows = grows || running.grows(row, highest, scale_log2);
    }
    let mut rescaled = sums;
    if plane_agrees_any(grows) {
        #[unroll]
        for row in 0..2usize {
            let factor = running.raise(row, next_maximum[row], scale_log2);
            #[unroll]
            for n in 0..comptime!(head_dim / 8) {
                let at = comptime!(4 * n + 2 * row);
                rescaled.insert(at, sums.extract(at) * factor);
                rescaled.insert(comptime!(at + 1), sums.extract(comptime!(at + 1)) * factor);
            }
        }
    }
    rescaled
}

/// The powers of two of scores relative to their row's maximum, packed as a left operand. They are
/// added to the row's total.
#[cube]
pub(super) fn powers_of_scores<E: Float, S: Size, K: Size>(
    scores: Vector<f32, S>,
    running: &mut RunningRows,
    scale_log2: f32,
) -> Vector<u32, K> {
    let mut packed = Vector::<u32, K>::empty();
    #[unroll]
    for row in 0..2usize {
        let shift = running.maximum[row] * scale_log2;
        #[unroll]
        for n in 0..comptime!(STAGE_ROWS / 8) {
            let at = comptime!(4 * n + 2 * row);
            let first = exp2(scores.extract(at) * scale_log2 - shift);
            let second = exp2(scores.extract(comptime!(at + 1)) * scale_log2 - shift);
            running.add(row, first, second);
            packed.insert(comptime!(2 * n + row), pack::<E>(first, second));
        }
    }
    packed
}
