//! From products to probabilities.

use cubecl::prelude::*;

use super::arguments::{KernelShape, Problem};

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

/// `exp(score - shift)`, and exactly 0 for hidden pairs. NaN stays NaN.
#[cube]
pub(super) fn probability<A: Float>(score: A, shift: A) -> A {
    select(score <= A::new(HIDDEN), A::new(0.0), (score - shift).exp())
}
