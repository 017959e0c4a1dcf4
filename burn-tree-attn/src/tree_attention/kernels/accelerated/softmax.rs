//! What the forward kernels have in common between the products.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::arguments::Mask;

/// What happens to a product of query and key before the softmax, which multiplies by a positive
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScoreMap {
    /// Nothing.
    Plain,
    /// It is multiplied by any number, such as a negative scale.
    Multiplied,
    /// It is multiplied by any number and becomes its hyperbolic tangent.
    Capped,
}

/// Scores start from here instead of minus infinity, so that the difference of two maxima is a
/// number: lower than any score that f32 sums of 16-bit products reach in practice.
pub(crate) const LOWEST: f32 = -1e30;
/// Growth of a row's maximum, as a power of two, up to which its sums are not rescaled.
pub(crate) const SLACK: f32 = 8.0;
const LN_2: f32 = core::f32::consts::LN_2;

/// A product as [`ScoreMap`] says, unless that is `Plain`.
#[cube]
pub(crate) fn mapped_score(product: f32, factor: f32, #[comptime] scores: ScoreMap) -> f32 {
    let score = product * factor;
    if comptime!(scores == ScoreMap::Capped) {
        tanh(score)
    } else {
        score
    }
}

/// The rows of accumulators that a lane holds numbers of.
#[derive(CubeType)]
pub(crate) struct RowsOfLane {
    /// Within the batch row.
    query: Array<u32>,
    /// Under a window, positions on the path.
    position: Array<u32>,
}

/// `first_position`: where the batch row starts in the mask's positions; `tile_row`: the lane's first
/// row in the tile, whose heads have `query_rows` rows each.
#[cube]
pub(crate) fn rows_of_lane(
    mask: &Mask,
    first_position: u32,
    first_query: u32,
    n_queries: u32,
    tile_row: u32,
    #[comptime] rows: usize,
    #[comptime] query_rows: usize,
    #[comptime] window: bool,
) -> RowsOfLane {
    let mut query = Array::<u32>::new(rows);
    let mut position = Array::<u32>::new(rows);
    #[unroll]
    for row in 0..rows {
        let offset = comptime!((row / 2 * 16 + row % 2 * 8) as u32);
        let index = first_query + (tile_row + offset) % comptime!(query_rows as u32);
        query[row] = index;
        if comptime!(window) {
            // Rows past the last one see nothing anyway.
            let index = min(index, n_queries - 1);
            position[row] = mask.query_position[(first_position + index) as usize];
        }
    }
    RowsOfLane { query, position }
}

/// Whether a row sees the first or second of two keys.
///
/// `starts`, `ends`: of the keys; `intervals`: address of the stage's intervals, from which the keys'
/// positions are `positions_at` bytes away.
#[cube]
pub(crate) fn sees(
    rows: &RowsOfLane,
    #[comptime] row: usize,
    starts: Vector<u32, Const<2>>,
    ends: Vector<u32, Const<2>>,
    #[comptime] key: usize,
    intervals: u32,
    #[comptime] positions_at: usize,
    length: u32,
    #[comptime] window: bool,
) -> bool {
    let mut visible = rows.query[row] >= starts.extract(key) && rows.query[row] < ends.extract(key);
    if comptime!(window) {
        let of_keys = load_pair(intervals, positions_at);
        visible = visible && rows.position[row] < of_keys.extract(key) + length;
    }
    visible
}

/// Rows of a cube's tile in output and log-sum-exp: `query_rows` of each head, one after the other.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct OutputRows {
    /// First row of `[B * Hq]`.
    pub query_row: u32,
    pub first_query: u32,
    pub n_queries: u32,
    #[cube(comptime)]
    pub query_rows: usize,
}

#[cube]
impl OutputRows {
    /// Where a row of the tile is in its batch row.
    pub fn query(&self, tile_row: u32) -> u32 {
        self.first_query + tile_row % comptime!(self.query_rows as u32)
    }

    /// Where it is in `[B * Hq * N]`; `query` as above.
    pub fn at(&self, tile_row: u32, query: u32) -> u32 {
        (self.query_row + tile_row / comptime!(self.query_rows as u32)) * self.n_queries + query
    }

    /// Writes the log-sum-exp of a row, number `of_lane` of the lane's: by the first of the lanes that
    /// hold it; 0 if it has `seen` nothing.
    pub fn store_log_sum_exp(
        &self,
        log_sum_exp: &mut [f32],
        tile_row: u32,
        lane: u32,
        maxima: &Array<f32>,
        #[comptime] of_lane: usize,
        total: f32,
        scale_log2: f32,
        seen: bool,
    ) {
        let query = self.query(tile_row);
        if lane % 4 == 0 && query < self.n_queries {
            let at = self.at(tile_row, query);
            let value = (maxima[of_lane] * scale_log2 + log2(total)) * LN_2;
            log_sum_exp[at as usize] = select(seen, value, 0.0f32);
        }
    }
}
