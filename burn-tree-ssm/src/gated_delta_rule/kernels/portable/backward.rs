//! What is local to a window in the backward pass, before the scan.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::tile::{
    Order, Quad, SQUARE_LANES, SQUARE_LEN, TILE, add_product, add_product_with_tile, block_column,
    block_row, new_stage, part, put, read, write, write_product_of_square, zeros,
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
    schedule: &[u32],
    grad_updates: &mut [E],
    problem: Problem,
    scale: f32,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let window = window_of_cube(schedule, &problem);
    let gates = load_gates(gates, schedule, &problem, &window);
    let keys = key_rows(&problem, &window);
    let values = value_rows(&problem, &window);
    let mut stage = new_stage(SQUARE_LANES);
    let mut square = Shared::<[Quad]>::new_slice(SQUARE_LEN);

    let mut block = zeros(4usize);
    add_product::<E, E>(
        key,
        &keys,
        Order::AsStored,
        query,
        &keys,
        Order::Transposed,
        keys.columns,
        &mut stage,
        &mut block,
    );
    scale_by_decays(&mut block, &gates, scale, true);
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

/// What a window adds to the gradient of the state before it, apart from what comes from the state
/// after it: `(e^G Q)^T dO - w^T dU`, with `dU` of [`update_gradients`] and `Q` scaled. One cube
/// for each window, value head and tile of 64 columns.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn state_gradients<E: Float>(
    query: &[E],
    w: &[E],
    grad_output: &[E],
    grad_updates: &[E],
    gates: &[f32],
    schedule: &[u32],
    window_grads: &mut [E],
    problem: Problem,
    scale: f32,
    #[comptime] key_tiles: usize,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let tiles = (problem.value_dim as usize).div_ceil(TILE);
    let heads = problem.value_heads as usize;
    let at = CUBE_POS / tiles;
    let window = window_at(schedule, &problem, at / heads, at % heads);
    let from = CUBE_POS % tiles * TILE;
    let gates = load_gates(gates, schedule, &problem, &window);
    let queries = key_rows(&problem, &window);
    let ws = head_key_rows(&problem, &window);
    let values = part(&value_rows(&problem, &window), 0usize, from);
    let mut stage = new_stage(SQUARE_LANES);
    let mut tile = Shared::<[Quad]>::new_slice(SQUARE_LEN);
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);

    let mut result = zeros(comptime!(4 * key_tiles));
    let mut block = zeros(4usize);
    #[unroll]
    for r in 0..4usize {
        let factor = Quad::new(scale * gates.sums[row + r].exp());
        block[r] = read::<E>(grad_output, &values, row + r, column) * factor;
    }
    put(&block, 0usize, &mut tile, SQUARE_LANES);
    #[unroll]
    for t in 0..key_tiles {
        add_product_with_tile::<E>(
            query,
            &part(&queries, 0usize, comptime!(t * TILE)),
            Order::Transposed,
            &tile,
            window.rows,
            &mut stage,
            &mut result,
            comptime!(4 * t),
            SQUARE_LANES,
        );
    }
    #[unroll]
    for r in 0..4usize {
        block[r] = -read::<E>(grad_updates, &values, row + r, column);
    }
    sync_cube();
    put(&block, 0usize, &mut tile, SQUARE_LANES);
    #[unroll]
    for t in 0..key_tiles {
        add_product_with_tile::<E>(
            w,
            &part(&ws, 0usize, comptime!(t * TILE)),
            Order::Transposed,
            &tile,
            window.rows,
            &mut stage,
            &mut result,
            comptime!(4 * t),
            SQUARE_LANES,
        );
    }
    let target = part(&window_state(&problem, &window), 0usize, from);
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
