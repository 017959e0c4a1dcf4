//! What is local to a window in the backward pass, before the scan.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::products::{add_to_state, new_stage, product_of_rows, write_product_of_square};
use super::tile::{
    Quad, SQUARE_LANES, SQUARE_LEN, TILE, block_column, block_row, part, put, read, write, zeros,
};
use super::window::{
    Problem, head_key_rows, key_rows, load_gates, scale_by_decays, value_rows, window_at,
    window_of_cube, window_state,
};

/// What the outputs of a window add to the gradients of its updates: `P^T dO`. One cube for each
/// window and value head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn update_gradients<E: Float>(
    query: &[E],
    key: &[E],
    grad_output: &[E],
    gates: &[f32],
    grad_updates: &mut [E],
    problem: &Problem,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let window = window_of_cube(problem);
    let gates = load_gates(gates, problem, &window);
    let keys = key_rows(problem, &window);
    let values = value_rows(problem, &window);
    let mut stage = new_stage(SQUARE_LANES);
    let mut square = Shared::<[Quad]>::new_slice(SQUARE_LEN);

    let mut block = product_of_rows::<E>(key, &keys, query, &keys, &mut stage);
    scale_by_decays(&mut block, &gates, problem.scale, true);
    put(&block, 0usize, &mut square, SQUARE_LANES);
    write_product_of_square::<E, E>(
        &square,
        grad_output,
        &values,
        window.rows,
        &mut stage,
        grad_updates,
        &values,
    );
}

/// What [`state_gradients`] reads besides gates.
#[derive(CubeType, CubeLaunch)]
pub(super) struct StateGradientInputs<E: Float> {
    /// `[R, HK, DK]`
    pub query: Box<[E]>,
    /// `[R, HV, DK]`
    pub w: Box<[E]>,
    /// `[R, HV, DV]`
    pub grad_output: Box<[E]>,
    /// `[R, HV, DV]`
    pub grad_updates: Box<[E]>,
}

/// What a window adds to the gradient of the state before it, apart from what comes from the state
/// after it: `(e^G Q)^T dO - w^T dU`, with `dU` of [`update_gradients`] and `Q` scaled. One cube
/// for each window, value head and tile of 64 columns.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn state_gradients<E: Float>(
    inputs: &StateGradientInputs<E>,
    gates: &[f32],
    window_grads: &mut [E],
    problem: &Problem,
    #[comptime] key_tiles: usize,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let tiles = (problem.value_dim as usize).div_ceil(TILE);
    let heads = problem.value_heads as usize;
    let at = CUBE_POS / tiles;
    let window = window_at(problem, at / heads, at % heads);
    let from = CUBE_POS % tiles * TILE;
    let gates = load_gates(gates, problem, &window);
    let queries = key_rows(problem, &window);
    let ws = head_key_rows(problem, &window);
    let values = part(&value_rows(problem, &window), 0usize, from);
    let mut stage = new_stage(SQUARE_LANES);
    let mut tile = Shared::<[Quad]>::new_slice(SQUARE_LEN);
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);

    let mut result = zeros(comptime!(4 * key_tiles));
    let mut block = zeros(4usize);
    #[unroll]
    for r in 0..4usize {
        let factor = Quad::new(problem.scale * gates.sums[row + r].exp());
        block[r] = read::<E>(&inputs.grad_output, &values, row + r, column) * factor;
    }
    put(&block, 0usize, &mut tile, SQUARE_LANES);
    add_to_state::<E>(
        &inputs.query,
        &queries,
        &tile,
        window.rows,
        &mut stage,
        &mut result,
        key_tiles,
        SQUARE_LANES,
    );
    #[unroll]
    for r in 0..4usize {
        block[r] = -read::<E>(&inputs.grad_updates, &values, row + r, column);
    }
    sync_cube();
    put(&block, 0usize, &mut tile, SQUARE_LANES);
    add_to_state::<E>(
        &inputs.w,
        &ws,
        &tile,
        window.rows,
        &mut stage,
        &mut result,
        key_tiles,
        SQUARE_LANES,
    );
    let target = part(&window_state(problem, &window), 0usize, from);
    #[unroll]
    for t in 0..key_tiles {
        #[unroll]
        for r in 0..4usize {
            let row = row + comptime!(t * TILE + r);
            write::<E>(
                result[comptime!(4 * t + r)],
                window_grads,
                &target,
                row,
                column,
            );
        }
    }
}
