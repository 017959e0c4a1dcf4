//! Gates: sums of the log decay within windows, and the gradients of log decay and beta.

use cubecl::prelude::*;

use super::super::log_decay::log_decay_of;
use super::window::{
    BETA, GRAD_BETA, GRAD_LOG_DECAY, GRAD_SUM, Problem, SUM, end_in_window, gate_index, window_at,
};

/// The gates of each row and head: sum of the log decay over the row's path within its window, and
/// beta; their gradients are set to zero. One cube for each window.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn window_gates(
    log_decay: &[f32],
    beta: &[f32],
    schedule: &[u32],
    gates: &mut [f32],
    problem: Problem,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let heads = problem.value_heads as usize;
    let rows = window_at(schedule, &problem, CUBE_POS, 0usize).rows;
    let mut at = UNIT_POS as usize;
    while at < rows * heads {
        let window = window_at(schedule, &problem, CUBE_POS, at % heads);
        let row = at / heads;
        let mut sum = 0.0f32;
        for ancestor in 0..row + 1 {
            if (row as u32) < end_in_window(schedule, &problem, &window, ancestor) {
                sum += log_decay_of(log_decay[(window.start + ancestor) * heads + window.head]);
            }
        }
        let first = gate_index(&problem, &window, row);
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
    schedule: &[u32],
    grad_log_decay: &mut [f32],
    grad_beta: &mut [f32],
    problem: Problem,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let heads = problem.value_heads as usize;
    let rows = window_at(schedule, &problem, CUBE_POS, 0usize).rows;
    let mut at = UNIT_POS as usize;
    while at < rows * heads {
        let window = window_at(schedule, &problem, CUBE_POS, at % heads);
        let row = at / heads;
        let gates = gate_index(&problem, &window, row);
        let mut sum = gate_values[gates + GRAD_LOG_DECAY];
        let end = end_in_window(schedule, &problem, &window, row) as usize;
        for below in row..end {
            sum += gate_values[gate_index(&problem, &window, below) + GRAD_SUM];
        }
        let target = (window.start + row) * heads + window.head;
        grad_log_decay[target] = sum;
        grad_beta[target] = gate_values[gates + GRAD_BETA];
        at += CUBE_DIM as usize;
    }
}
