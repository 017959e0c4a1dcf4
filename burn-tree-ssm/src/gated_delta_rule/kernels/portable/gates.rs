//! Gates: sums of the log decay within windows, and the gradients of log decay and beta.

use cubecl::prelude::*;

use super::super::log_decay::log_decay_of;
use super::tile::{
    Quad, SQUARE_LANES, SQUARE_STRIDE, TILE, block_column, block_row, is_first, sum_rows,
};
use super::window::{
    BETA, GRAD_BETA, GRAD_LOG_DECAY, GRAD_SUM, Gates, Problem, SUM, Window, end_in_window,
    gate_index, sees, window_at,
};

/// The gates of each row and head: sum of the log decay over the row's path within its window, and
/// beta; their gradients are set to zero. One cube for each window.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn window_gates(log_decay: &[f32], beta: &[f32], gates: &mut [f32], problem: &Problem) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let heads = problem.value_heads as usize;
    let rows = window_at(problem, CUBE_POS, 0usize).rows;
    let mut at = UNIT_POS as usize;
    while at < rows * heads {
        let window = window_at(problem, CUBE_POS, at % heads);
        let row = at / heads;
        let mut sum = 0.0f32;
        for ancestor in 0..row + 1 {
            if (row as u32) < end_in_window(problem, &window, ancestor) {
                sum += log_decay_of(log_decay[(window.start + ancestor) * heads + window.head]);
            }
        }
        let first = gate_index(problem, &window, row);
        gates[first + SUM] = sum;
        gates[first + BETA] = beta[(window.start + row) * heads + window.head];
        gates[first + GRAD_SUM] = 0.0f32;
        gates[first + GRAD_LOG_DECAY] = 0.0f32;
        gates[first + GRAD_BETA] = 0.0f32;
        at += CUBE_DIM as usize;
    }
}

/// Gradients of the log decay and of beta, `[R, HV]`: the former with those of the sums that they
/// are part of. One cube for each window.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn gate_gradients(
    gate_values: &[f32],
    grad_log_decay: &mut [f32],
    grad_beta: &mut [f32],
    problem: &Problem,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let heads = problem.value_heads as usize;
    let rows = window_at(problem, CUBE_POS, 0usize).rows;
    let mut at = UNIT_POS as usize;
    while at < rows * heads {
        let window = window_at(problem, CUBE_POS, at % heads);
        let row = at / heads;
        let gates = gate_index(problem, &window, row);
        let mut sum = gate_values[gates + GRAD_LOG_DECAY];
        let end = end_in_window(problem, &window, row) as usize;
        for below in row..end {
            sum += gate_values[gate_index(problem, &window, below) + GRAD_SUM];
        }
        let target = (window.start + row) * heads + window.head;
        grad_log_decay[target] = sum;
        grad_beta[target] = gate_values[gates + GRAD_BETA];
        at += CUBE_DIM as usize;
    }
}

/// For every row of a tile, the sum of what passes it, of numbers for pairs of rows (row of the
/// tile) and ancestors (column) in shared memory: from ancestors of the row to itself and the rows
/// below it. Numbers of other pairs are zero. The units of [`is_first`] get the sums of rows
/// `4 UNIT_POS ..`. All units must arrive; the tile is used up.
#[cube]
pub(super) fn sum_passing(gates: &Gates, pairs: &mut Shared<[Quad]>) -> Quad {
    sync_cube();
    if UNIT_POS < comptime!(TILE as u32) {
        // In place of each number, the sum of those before it in its row.
        let mut before = 0.0f32;
        for quad in 0..SQUARE_LANES {
            let at = UNIT_POS as usize * SQUARE_STRIDE + quad;
            let numbers = pairs[at];
            let mut sums = Quad::zeroed();
            #[unroll]
            for c in 0..4usize {
                sums.insert(c, before);
                before += numbers.extract(c);
            }
            pairs[at] = sums;
        }
    }
    sync_cube();
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);
    let mut of_columns = Quad::zeroed();
    #[unroll]
    for r in 0..4usize {
        let sums = pairs[(row + r) * SQUARE_STRIDE + column / 4];
        #[unroll]
        for c in 0..4usize {
            if sees(gates, row + r, column + c) {
                let sum = of_columns.extract(c) + sums.extract(c);
                of_columns.insert(c, sum);
            }
        }
    }
    sum_rows(of_columns, pairs)
}

/// Adds the sums that the units of [`is_first`] have for four rows each to the rows' gates.
#[cube]
pub(super) fn add_to_gates(
    sums: Quad,
    gate_values: &mut [f32],
    #[comptime] which: usize,
    problem: &Problem,
    window: &Window,
) {
    if is_first() {
        #[unroll]
        for c in 0..4usize {
            let row = UNIT_POS as usize * 4 + c;
            if row < window.rows {
                gate_values[gate_index(problem, window, row) + which] += sums.extract(c);
            }
        }
    }
}
