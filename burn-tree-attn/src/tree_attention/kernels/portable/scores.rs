//! From products to probabilities.

use cubecl::prelude::*;

use super::arguments::{KernelShape, Problem};
use super::tile::{Rows, lane, rows_from, unit_row};

/// Score of hidden pairs: finite, so that differences stay numbers.
pub(super) const HIDDEN: f32 = -1e30;

/// Which batch row, head and tile a cube works on.
#[derive(CubeType)]
pub(super) struct Place {
    pub batch: usize,
    pub head: usize,
    /// Number of the tile over all batch rows.
    pub tile: usize,
    /// First row of the tile within the batch row.
    pub first_row: usize,
}

/// The place of the cube, long lists first, the heads of a tile one after another.
#[cube]
pub(super) fn place(
    plan: &[u32],
    problem: &Problem,
    rows: usize,
    heads: usize,
    #[comptime] tile_rows: usize,
) -> Place {
    let cube = CUBE_POS;
    let tile = plan[problem.order as usize + cube / heads] as usize;
    let per_batch = rows.div_ceil(tile_rows);
    Place {
        batch: tile / per_batch,
        head: cube % heads,
        tile,
        first_row: tile % per_batch * tile_rows,
    }
}

/// What a cube works on whose query tile stays.
#[derive(CubeType)]
pub(super) struct QueryPlace {
    pub batch: usize,
    /// Number of the tile over all batch rows.
    pub tile: usize,
    /// First row of the tile within the batch row.
    pub first_row: usize,
    /// The same over all batch rows and heads.
    pub first_query: usize,
    /// First key of the batch row and head, over all of them.
    pub first_key: usize,
    /// Rows from the tile's first to the last one of the batch row.
    pub query_rows: usize,
}

#[cube]
pub(super) fn query_place(
    plan: &[u32],
    problem: &Problem,
    #[comptime] tile_rows: usize,
) -> QueryPlace {
    let (queries, keys) = (problem.queries as usize, problem.keys as usize);
    let (heads, kv_heads) = (problem.query_heads as usize, problem.kv_heads as usize);
    let place = place(plan, problem, queries, heads, tile_rows);
    let kv_head = place.head / (heads / kv_heads);
    let first_query = (place.batch * heads + place.head) * queries + place.first_row;
    let first_key = (place.batch * kv_heads + kv_head) * keys;
    let query_rows = queries - place.first_row;
    QueryPlace {
        batch: place.batch,
        tile: place.tile,
        first_row: place.first_row,
        first_query,
        first_key,
        query_rows,
    }
}

#[cube]
impl QueryPlace {
    /// The tile's rows of a tensor with `vectors` vectors a row.
    pub fn rows(&self, #[comptime] vectors: usize) -> Rows {
        rows_from(self.first_query, self.query_rows, vectors)
    }

    /// Rows of keys or values from `tile_key` on, of `vectors` vectors.
    pub fn key_rows(&self, problem: &Problem, tile_key: usize, #[comptime] vectors: usize) -> Rows {
        let valid = problem.keys as usize - tile_key;
        rows_from(self.first_key + tile_key, valid, vectors)
    }
}

/// Positions of a unit's query rows.
#[cube]
pub(super) fn query_positions(
    plan: &[u32],
    problem: &Problem,
    place: &QueryPlace,
    #[comptime] shape: KernelShape,
) -> Array<usize> {
    let blocking = comptime!(shape.blocking);
    let mut positions = Array::<usize>::new(comptime!(blocking.rows));
    #[unroll]
    for r in 0..comptime!(blocking.rows) {
        let row = place.first_row + unit_row(blocking) + comptime!(r * blocking.unit_rows);
        positions[r] = query_position(plan, problem, place.batch, row, shape);
    }
    positions
}

/// The rows that see a key, and its position.
#[derive(CubeType)]
pub(super) struct Interval {
    start: usize,
    end: usize,
    position: usize,
}

/// The interval of a key of a batch row; nobody sees keys from `M` on.
#[cube]
pub(super) fn interval(
    plan: &[u32],
    problem: &Problem,
    batch: usize,
    key: usize,
    #[comptime] shape: KernelShape,
) -> Interval {
    let mut start = 0usize;
    let mut end = 0usize;
    let mut position = 0usize;
    if key < problem.keys as usize {
        let at = batch * problem.keys as usize + key;
        start = plan[problem.key_start as usize + at] as usize;
        end = plan[problem.key_end as usize + at] as usize;
        if comptime!(shape.window) {
            position = plan[problem.key_position as usize + at] as usize;
        }
    }
    Interval {
        start,
        end,
        position,
    }
}

/// Position of a query row; 0 without a window, or from `N` on.
#[cube]
pub(super) fn query_position(
    plan: &[u32],
    problem: &Problem,
    batch: usize,
    row: usize,
    #[comptime] shape: KernelShape,
) -> usize {
    let mut position = 0usize;
    if comptime!(shape.window) {
        if row < problem.queries as usize {
            let at = batch * problem.queries as usize + row;
            position = plan[problem.query_position as usize + at] as usize;
        }
    }
    position
}

/// Whether a query row sees a key.
#[cube]
pub(super) fn sees(
    row: usize,
    position: usize,
    key: &Interval,
    problem: &Problem,
    #[comptime] shape: KernelShape,
) -> bool {
    let mut visible = row >= key.start && row < key.end;
    if comptime!(shape.window) {
        visible = visible && key.position + problem.window as usize > position;
    }
    visible
}

/// Hides the scores of pairs of a unit's query rows, at these positions, with its keys of a tile
/// that starts at `tile_key`.
#[cube]
pub(super) fn hide_keys<A: Float>(
    scores: &mut Array<A>,
    positions: &Array<usize>,
    plan: &[u32],
    problem: &Problem,
    place: &QueryPlace,
    tile_key: usize,
    #[comptime] shape: KernelShape,
) {
    let blocking = comptime!(shape.blocking);
    let columns = comptime!(blocking.columns);
    let (unit_row, lane) = (unit_row(blocking), lane(blocking));
    #[unroll]
    for c in 0..columns {
        let key = tile_key + lane + comptime!(c * blocking.lanes);
        let interval = interval(plan, problem, place.batch, key, shape);
        #[unroll]
        for r in 0..comptime!(blocking.rows) {
            let row = place.first_row + unit_row + comptime!(r * blocking.unit_rows);
            if !sees(row, positions[r], &interval, problem, shape) {
                scores[r * columns + c] = A::new(HIDDEN);
            }
        }
    }
}

/// Score and, for the backward pass, its derivative by the scaled product.
#[derive(CubeType)]
pub(super) struct Score<A: Float> {
    pub value: A,
    pub slope: A,
}

/// The score of a scaled product.
#[cube]
pub(super) fn score<A: Float>(scaled: A, softcap: A, #[comptime] shape: KernelShape) -> Score<A> {
    let mut value = scaled;
    let mut slope = A::new(1.0);
    if comptime!(shape.softcap) {
        let bounded = (scaled / softcap).tanh();
        value = softcap * bounded;
        slope = A::new(1.0) - bounded * bounded;
    }
    Score::<A> { value, slope }
}

/// Turns products into scores and, next to them, their derivatives by the scaled product.
#[cube]
pub(super) fn scores_and_slopes<A: Float>(
    scores: &mut Array<A>,
    slopes: &mut Array<A>,
    problem: &Problem,
    #[comptime] shape: KernelShape,
) {
    let (scale, softcap) = (problem.scale.get::<A>(), problem.softcap.get::<A>());
    let blocking = comptime!(shape.blocking);
    #[unroll]
    for at in 0..comptime!(blocking.rows * blocking.columns) {
        let score = score::<A>(scores[at] * scale, softcap, shape);
        scores[at] = score.value;
        slopes[at] = score.slope;
    }
}

/// `exp(score - shift)`, and exactly 0 for hidden pairs. NaN stays NaN.
#[cube]
pub(super) fn probability<A: Float>(score: A, shift: A) -> A {
    select(score <= A::new(HIDDEN), A::new(0.0), (score - shift).exp())
}
