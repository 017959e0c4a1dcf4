//! States along the paths of a level, forwards, and their gradients, backwards. A cube keeps the
//! state of a path, some columns of a head, in registers; columns do not depend on each other.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::tile::{
    Matrix, Order, Quad, TILE, UNIT_ROWS, add_product_with_tile, block_column, block_row,
    new_stage, part, put, read, tile_len, write, zeros,
};
use super::window::{
    INITIAL, NOWHERE, PathTile, Problem, SUM, Window, ZERO, entry, gate_index, head_key_rows,
    key_rows, path_tile_of_cube, slot, state, value_rows, window_at,
};

/// Lanes, and with them columns, of a cube: few, so that there are many cubes.
const LANES: usize = 8;
/// Columns of a cube.
pub(super) const COLUMNS: usize = 4 * LANES;
/// Units of a cube.
pub(super) const UNITS: u32 = (UNIT_ROWS * LANES) as u32;

/// The states of the paths of a level, and the updates `U = u - w H` of their rows, in place of
/// `u`. One cube for each path, value head and tile of columns.
///
/// Stored are the state before each window (`window_states [W, HV, DK, DV]`) and, if
/// `stores_slots`, those after rows with a slot (`states [S, HV, DK, DV]`); else they are there.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn scan<E: Float>(
    key: &[E],
    w: &[E],
    updates: &mut [E],
    initial_states: &[f32],
    gates: &[f32],
    schedule: &[u32],
    window_states: &mut [E],
    states: &mut [f32],
    problem: Problem,
    #[comptime] key_tiles: usize,
    #[comptime] stores_slots: bool,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let place = path_tile_of_cube(schedule, &problem, COLUMNS);
    let row = block_row(LANES);
    let column = block_column(LANES);
    let mut stage = new_stage(LANES);
    let mut tile = Shared::<[Quad]>::new_slice(comptime!(tile_len(LANES)));

    let mut current = zeros(comptime!(4 * key_tiles));
    let entry = entry(schedule, &problem, place.path);
    if entry < INITIAL {
        let source = columns_of(&problem, entry as usize, &place);
        load_state::<f32>(&*states, &source, &mut current, key_tiles);
    } else if entry != ZERO {
        let source = columns_of(&problem, (ZERO - 1 - entry) as usize, &place);
        load_state::<f32>(initial_states, &source, &mut current, key_tiles);
    }

    for index in place.first..place.end {
        let window = window_at(schedule, &problem, index, place.head);
        let before = columns_of(&problem, index, &place);
        store_state::<E>(&current, window_states, &before, key_tiles);

        let ws = head_key_rows(&problem, &window);
        let mut block = zeros(4usize);
        #[unroll]
        for t in 0..key_tiles {
            sync_cube();
            put(&current, comptime!(4 * t), &mut tile, LANES);
            let operand = part(&ws, 0usize, comptime!(t * TILE));
            let depth = min(operand.columns, TILE);
            add_product_with_tile::<E>(
                w,
                &operand,
                Order::AsStored,
                &tile,
                depth,
                &mut stage,
                &mut block,
                0usize,
                LANES,
            );
        }
        let slot = slot(schedule, &problem, &window);
        let has_exit = slot != NOWHERE || index + 1 < place.end;
        let values = part(&value_rows(&problem, &window), 0usize, place.column);
        #[unroll]
        for r in 0..4usize {
            let update = read::<E>(&*updates, &values, row + r, column) - block[r];
            write::<E>(update, updates, &values, row + r, column);
            block[r] = update * Quad::new(decay_to_end(gates, &problem, &window, row + r));
        }
        if has_exit {
            sync_cube();
            put(&block, 0usize, &mut tile, LANES);
            let keys = key_rows(&problem, &window);
            let through = Quad::new(decay_through(gates, &problem, &window));
            #[unroll]
            for t in 0..key_tiles {
                #[unroll]
                for r in 0..4usize {
                    current[comptime!(4 * t + r)] *= through;
                }
                add_product_with_tile::<E>(
                    key,
                    &part(&keys, 0usize, comptime!(t * TILE)),
                    Order::Transposed,
                    &tile,
                    window.rows,
                    &mut stage,
                    &mut current,
                    comptime!(4 * t),
                    LANES,
                );
            }
            if comptime!(stores_slots) && slot != NOWHERE {
                let after = columns_of(&problem, slot as usize, &place);
                store_state::<f32>(&current, states, &after, key_tiles);
            }
        }
    }
}

/// The gradients of the states of the paths of a level, from its last window to its first, and the
/// gradients of the updates, in place of what their own window's output adds to them. One cube for
/// each path, value head and tile of columns.
///
/// `window_grads [W, HV, DK, DV]` holds what each window adds to the gradient of the state before
/// it, apart from what comes from the state after it, and gets the gradient of the latter.
/// `state_grads [X + P, HV, DK, DV]` holds the gradients of the states after requested rows, then
/// gets those of the states before each path.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn scan_backward<E: Float>(
    key: &[E],
    w: &[E],
    grad_updates: &mut [E],
    gates: &[f32],
    schedule: &[u32],
    window_grads: &mut [E],
    state_grads: &mut [f32],
    problem: Problem,
    #[comptime] key_tiles: usize,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let place = path_tile_of_cube(schedule, &problem, COLUMNS);
    let row = block_row(LANES);
    let column = block_column(LANES);
    let mut stage = new_stage(LANES);
    let mut tile = Shared::<[Quad]>::new_slice(comptime!(tile_len(LANES)));

    let mut current = zeros(comptime!(4 * key_tiles));
    for before_end in 0..place.end - place.first {
        let index = place.end - 1 - before_end;
        let window = window_at(schedule, &problem, index, place.head);
        let slot = slot(schedule, &problem, &window);
        if slot != NOWHERE {
            add_slot(
                &*state_grads,
                schedule,
                &problem,
                &place,
                slot,
                &mut current,
                key_tiles,
            );
        }
        let at = columns_of(&problem, index, &place);
        let mut local = zeros(comptime!(4 * key_tiles));
        load_state::<E>(&*window_grads, &at, &mut local, key_tiles);
        store_state::<E>(&current, window_grads, &at, key_tiles);

        if slot != NOWHERE || index + 1 < place.end {
            let keys = key_rows(&problem, &window);
            let mut block = zeros(4usize);
            #[unroll]
            for t in 0..key_tiles {
                sync_cube();
                put(&current, comptime!(4 * t), &mut tile, LANES);
                let operand = part(&keys, 0usize, comptime!(t * TILE));
                let depth = min(operand.columns, TILE);
                add_product_with_tile::<E>(
                    key,
                    &operand,
                    Order::AsStored,
                    &tile,
                    depth,
                    &mut stage,
                    &mut block,
                    0usize,
                    LANES,
                );
            }
            let values = part(&value_rows(&problem, &window), 0usize, place.column);
            #[unroll]
            for r in 0..4usize {
                block[r] *= Quad::new(decay_to_end(gates, &problem, &window, row + r));
                let grad = read::<E>(&*grad_updates, &values, row + r, column) + block[r];
                write::<E>(grad, grad_updates, &values, row + r, column);
                block[r] = -block[r];
            }
            sync_cube();
            put(&block, 0usize, &mut tile, LANES);
            let ws = head_key_rows(&problem, &window);
            let through = Quad::new(decay_through(gates, &problem, &window));
            #[unroll]
            for t in 0..key_tiles {
                #[unroll]
                for r in 0..4usize {
                    let at = comptime!(4 * t + r);
                    local[at] += current[at] * through;
                }
                add_product_with_tile::<E>(
                    w,
                    &part(&ws, 0usize, comptime!(t * TILE)),
                    Order::Transposed,
                    &tile,
                    window.rows,
                    &mut stage,
                    &mut local,
                    comptime!(4 * t),
                    LANES,
                );
            }
        }
        #[unroll]
        for at in 0..comptime!(4 * key_tiles) {
            current[at] = local[at];
        }
    }
    let target = columns_of(&problem, problem.requested as usize + place.path, &place);
    store_state::<f32>(&current, state_grads, &target, key_tiles);
}

/// Adds the gradient of a slot: that of the caller, if the state was requested, then those of the
/// paths that start there, one after another.
#[cube]
fn add_slot(
    state_grads: &[f32],
    schedule: &[u32],
    problem: &Problem,
    place: &PathTile,
    slot: u32,
    current: &mut Array<Quad>,
    #[comptime] key_tiles: usize,
) {
    if slot < problem.requested {
        let source = columns_of(problem, slot as usize, place);
        add_state(state_grads, &source, current, key_tiles);
    }
    let list = (problem.slot_child_offsets + slot) as usize;
    for child in schedule[list]..schedule[list + 1] {
        let path = schedule[(problem.slot_children + child) as usize];
        let source = columns_of(problem, (problem.requested + path) as usize, place);
        add_state(state_grads, &source, current, key_tiles);
    }
}

/// The cube's columns of a state.
#[cube]
fn columns_of(problem: &Problem, index: usize, place: &PathTile) -> Matrix {
    part(&state(problem, index, place.head), 0usize, place.column)
}

#[cube]
fn load_state<S: Float>(
    source: &[S],
    matrix: &Matrix,
    state: &mut Array<Quad>,
    #[comptime] key_tiles: usize,
) {
    #[unroll]
    for t in 0..key_tiles {
        #[unroll]
        for r in 0..4usize {
            let row = block_row(LANES) + comptime!(t * TILE + r);
            state[comptime!(4 * t + r)] = read::<S>(source, matrix, row, block_column(LANES));
        }
    }
}

#[cube]
fn add_state(
    source: &[f32],
    matrix: &Matrix,
    state: &mut Array<Quad>,
    #[comptime] key_tiles: usize,
) {
    #[unroll]
    for t in 0..key_tiles {
        #[unroll]
        for r in 0..4usize {
            let row = block_row(LANES) + comptime!(t * TILE + r);
            state[comptime!(4 * t + r)] += read::<f32>(source, matrix, row, block_column(LANES));
        }
    }
}

#[cube]
fn store_state<S: Float>(
    state: &Array<Quad>,
    target: &mut [S],
    matrix: &Matrix,
    #[comptime] key_tiles: usize,
) {
    #[unroll]
    for t in 0..key_tiles {
        #[unroll]
        for r in 0..4usize {
            let row = block_row(LANES) + comptime!(t * TILE + r);
            write::<S>(
                state[comptime!(4 * t + r)],
                target,
                matrix,
                row,
                block_column(LANES),
            );
        }
    }
}

/// What is left after the window's last row of what its row `row` adds; 0 past the last.
#[cube]
fn decay_to_end(gates: &[f32], problem: &Problem, window: &Window, row: usize) -> f32 {
    let mut factor = 0.0f32;
    if row < window.rows {
        let last = gates[gate_index(problem, window, window.rows - 1) + SUM];
        factor = (last - gates[gate_index(problem, window, row) + SUM]).exp();
    }
    factor
}

/// What is left after the window of the state before it.
#[cube]
fn decay_through(gates: &[f32], problem: &Problem, window: &Window) -> f32 {
    gates[gate_index(problem, window, window.rows - 1) + SUM].exp()
}
