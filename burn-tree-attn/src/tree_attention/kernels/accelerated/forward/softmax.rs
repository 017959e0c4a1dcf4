//! What the forward kernels have in common between the products.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::arguments::{Mask, QueryTile};

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

/// How products of queries and keys become exponents.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct ScoreOptions {
    /// Factor of the scores that the [`ScoreMap`] gives, times log2(e).
    pub scale_log2: f32,
    /// Factor of the products, unless the [`ScoreMap`] is `Plain`.
    pub factor: f32,
    /// Length of the sliding window, if there is one.
    pub window: u32,
}

/// Output and log-sum-exp.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Results {
    /// `[B, Hq, N, D]` as 16-byte chunks.
    pub output: Box<[Vector<u32, Const<4>>]>,
    /// `[B, Hq, N]`
    pub log_sum_exp: Box<[f32]>,
}

/// Scores start from here instead of minus infinity, so that the difference of two maxima is a
/// number: lower than any score that f32 sums of 16-bit products reach in practice.
const LOWEST: f32 = -1e30;
/// Growth of a row's maximum, as a power of two, up to which its sums are not rescaled.
const SLACK: f32 = 8.0;
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

/// Maximum and sum of powers, so far, of each row that a lane holds numbers of. The sum is over the
/// lane's columns.
#[derive(CubeType)]
pub(crate) struct RunningRows {
    pub maximum: Array<f32>,
    pub total: Array<f32>,
}

/// Rows of which no score has been seen.
#[cube]
pub(crate) fn running_rows(#[comptime] rows: usize) -> RunningRows {
    let mut maximum = Array::<f32>::new(rows);
    let mut total = Array::<f32>::new(rows);
    #[unroll]
    for row in 0..rows {
        maximum[row] = LOWEST;
        total[row] = 0.0f32;
    }
    RunningRows { maximum, total }
}

#[cube]
impl RunningRows {
    /// Whether `maximum` exceeds the row's by more than the slack. The maximum only keeps the
    /// powers in range, so a slightly lower one is as good.
    pub fn grows(&self, #[comptime] row: usize, maximum: f32, scale_log2: f32) -> bool {
        (maximum - self.maximum[row]) * scale_log2 > SLACK
    }

    /// Raises the maximum of a row and returns the factor of its sums.
    pub fn raise(&mut self, #[comptime] row: usize, maximum: f32, scale_log2: f32) -> f32 {
        let factor = exp2((self.maximum[row] - maximum) * scale_log2);
        self.maximum[row] = maximum;
        self.total[row] *= factor;
        factor
    }

    /// Adds two powers of a row.
    pub fn add(&mut self, #[comptime] row: usize, first: f32, second: f32) {
        self.total[row] += first + second;
    }

    /// Writes the log-sum-exp of a row, by the first of the lanes that hold it, and returns the
    /// factor of its sums; both 0 if it has seen nothing. `tile_row`: where the row is in the tile.
    pub fn finish(
        &self,
        #[comptime] row: usize,
        tile: &QueryTile,
        tile_row: u32,
        log_sum_exp: &mut [f32],
        scale_log2: f32,
    ) -> f32 {
        let total = row_sum(self.total[row]);
        let seen = total > 0.0f32;
        let query = tile.query(tile_row);
        if UNIT_POS_X % 4 == 0 && query < tile.n_queries {
            let at = tile.at(tile_row, query);
            let value = (self.maximum[row] * scale_log2 + log2(total)) * LN_2;
            log_sum_exp[at as usize] = select(seen, value, 0.0f32);
        }
        select(seen, reciprocal(total), 0.0f32)
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

/// `tile_row`: the lane's first row in the tile.
#[cube]
pub(crate) fn rows_of_lane(
    mask: &Mask,
    tile: &QueryTile,
    tile_row: u32,
    #[comptime] rows: usize,
    #[comptime] window: bool,
) -> RowsOfLane {
    let mut query = Array::<u32>::new(rows);
    let mut position = Array::<u32>::new(rows);
    #[unroll]
    for row in 0..rows {
        let offset = comptime!((row / 2 * 16 + row % 2 * 8) as u32);
        let index = tile.query(tile_row + offset);
        query[row] = index;
        if comptime!(window) {
            // Rows past the last one see nothing anyway.
            let index = min(index, tile.n_queries - 1);
            position[row] = mask.query_position[(tile.batch * tile.n_queries + index) as usize];
        }
    }
    RowsOfLane { query, position }
}

/// Two neighbouring keys of a stage.
#[derive(CubeType)]
pub(crate) struct KeyPair {
    start: Vector<u32, Const<2>>,
    end: Vector<u32, Const<2>>,
    /// Under a window, positions on the path.
    position: Vector<u32, Const<2>>,
}

/// The lane's keys in the 8-column block `block`. `intervals`: address of the stage's intervals,
/// plus 8 for every column pair of the lane; arrays are `array_bytes` apart.
#[cube]
pub(crate) fn key_pair(
    intervals: u32,
    #[comptime] block: usize,
    #[comptime] array_bytes: usize,
    #[comptime] window: bool,
) -> KeyPair {
    let start = load_pair(intervals, comptime!(block * 32));
    let end = load_pair(intervals, comptime!(block * 32 + array_bytes));
    let position = if comptime!(window) {
        load_pair(intervals, comptime!(block * 32 + 2 * array_bytes))
    } else {
        start
    };
    KeyPair {
        start,
        end,
        position,
    }
}

#[cube]
impl KeyPair {
    /// Whether a row sees the first or second of the keys. `length`: of the window.
    pub fn seen_by(
        &self,
        rows: &RowsOfLane,
        #[comptime] row: usize,
        #[comptime] key: usize,
        length: u32,
        #[comptime] window: bool,
    ) -> bool {
        let mut visible =
            rows.query[row] >= self.start.extract(key) && rows.query[row] < self.end.extract(key);
        if comptime!(window) {
            visible = visible && rows.position[row] < self.position.extract(key) + length;
        }
        visible
    }
}
