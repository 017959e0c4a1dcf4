//! States along the paths of a level, forwards, and their gradients, backwards. A cube keeps the
//! state of a path, some columns of a head, in registers; columns do not depend on each other.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::products::{Order, Place, Stage, add_product_with_tile, add_to_state, new_stage};
use super::tile::{
    Matrix, Quad, TILE, UNIT_ROWS, block_column, block_row, part, put, read, tile_len, write, zeros,
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

/// Compile-time shape of [`scan()`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ScanConfig {
    /// Tiles of 64 keys.
    pub key_tiles: usize,
    /// Whether states after rows with a slot are stored; else they are there.
    pub stores_slots: bool,
}

/// What takes states from window to window, in both directions.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Transitions<E: Float> {
    /// `[R, HK, DK]`
    pub key: Box<[E]>,
    /// `[R, HV, DK]`
    pub w: Box<[E]>,
    /// `[R, HV, GATES]`
    pub gates: Box<[f32]>,
}

/// The states of the paths of a level, and the updates `U = u - w H` of their rows, in place of
/// `u`. One cube for each path, value head and tile of columns.
///
/// Stored are the state before each window (`window_states [W, HV, DK, DV]`) and, if the
/// configuration says so, those after rows with a slot (`states [S, HV, DK, DV]`).
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn scan<E: Float>(
    transitions: &Transitions<E>,
    updates: &mut [E],
    initial_states: &[f32],
    window_states: &mut [E],
    states: &mut [f32],
    problem: &Problem,
    #[comptime] config: ScanConfig,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let key_tiles = comptime!(config.key_tiles);
    let place = path_tile_of_cube(problem, COLUMNS);
    let row = block_row(LANES);
    let column = block_column(LANES);
    let mut stage = new_stage(LANES);
    let mut tile = Shared::<[Quad]>::new_slice(comptime!(tile_len(LANES)));

    let mut current = zeros(comptime!(4 * key_tiles));
    let entry = entry(problem, place.path);
    if entry < INITIAL {
        let source = columns_of(problem, entry as usize, &place);
        load_state::<f32>(&*states, &source, &mut current, key_tiles);
    } else if entry != ZERO {
        let source = columns_of(problem, (ZERO - 1 - entry) as usize, &place);
        load_state::<f32>(initial_states, &source, &mut current, key_tiles);
    }

    for index in place.first..place.end {
        let window = window_at(problem, index, place.head);
        let before = columns_of(problem, index, &place);
        store_state::<E>(&current, window_states, &before, key_tiles);
        let ws = head_key_rows(problem, &window);
        let mut block = multiply_state::<E>(
            &transitions.w,
            &ws,
            &current,
            &mut tile,
            &mut stage,
            key_tiles,
        );
        let slot = slot(problem, &window);
        let values = part(&value_rows(problem, &window), 0usize, place.column);
        #[unroll]
        for r in 0..4usize {
            let update = read::<E>(&*updates, &values, row + r, column) - block[r];
            write::<E>(update, updates, &values, row + r, column);
            let decay = decay_to_end(&transitions.gates, problem, &window, row + r);
            block[r] = update * Quad::new(decay);
        }
        if slot != NOWHERE || index + 1 < place.end {
            let through = Quad::new(decay_through(&transitions.gates, problem, &window));
            #[unroll]
            for at in 0..comptime!(4 * key_tiles) {
                current[at] *= through;
            }
            sync_cube();
            put(&block, 0usize, &mut tile, LANES);
            let keys = key_rows(problem, &window);
            add_to_state::<E>(
                &transitions.key,
                &keys,
                &tile,
                window.rows,
                &mut stage,
                &mut current,
                key_tiles,
                LANES,
            );
            if comptime!(config.stores_slots) && slot != NOWHERE {
                let after = columns_of(problem, slot as usize, &place);
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
    transitions: &Transitions<E>,
    grad_updates: &mut [E],
    window_grads: &mut [E],
    state_grads: &mut [f32],
    problem: &Problem,
    #[comptime] key_tiles: usize,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let place = path_tile_of_cube(problem, COLUMNS);
    let row = block_row(LANES);
    let column = block_column(LANES);
    let mut stage = new_stage(LANES);
    let mut tile = Shared::<[Quad]>::new_slice(comptime!(tile_len(LANES)));

    let mut current = zeros(comptime!(4 * key_tiles));
    for before_end in 0..place.end - place.first {
        let index = place.end - 1 - before_end;
        let window = window_at(problem, index, place.head);
        let slot = slot(problem, &window);
        if slot != NOWHERE {
            add_slot(
                &*state_grads,
                problem,
                &place,
                slot,
                &mut current,
                key_tiles,
            );
        }
        let at = columns_of(problem, index, &place);
        let mut local = zeros(comptime!(4 * key_tiles));
        load_state::<E>(&*window_grads, &at, &mut local, key_tiles);
        store_state::<E>(&current, window_grads, &at, key_tiles);

        if slot != NOWHERE || index + 1 < place.end {
            let keys = key_rows(problem, &window);
            let mut block = multiply_state::<E>(
                &transitions.key,
                &keys,
                &current,
                &mut tile,
                &mut stage,
                key_tiles,
            );
            let values = part(&value_rows(problem, &window), 0usize, place.column);
            #[unroll]
            for r in 0..4usize {
                let decay = decay_to_end(&transitions.gates, problem, &window, row + r);
                block[r] *= Quad::new(decay);
                let grad = read::<E>(&*grad_updates, &values, row + r, column) + block[r];
                write::<E>(grad, grad_updates, &values, row + r, column);
                block[r] = -block[r];
            }
            let through = Quad::new(decay_through(&transitions.gates, problem, &window));
            #[unroll]
            for at in 0..comptime!(4 * key_tiles) {
                local[at] += current[at] * through;
            }
            sync_cube();
            put(&block, 0usize, &mut tile, LANES);
            let ws = head_key_rows(problem, &window);
            add_to_state::<E>(
                &transitions.w,
                &ws,
                &tile,
                window.rows,
                &mut stage,
                &mut local,
                key_tiles,
                LANES,
            );
        }
        #[unroll]
        for at in 0..comptime!(4 * key_tiles) {
            current[at] = local[at];
        }
    }
    let target = columns_of(problem, problem.requested as usize + place.path, &place);
    store_state::<f32>(&current, state_grads, &target, key_tiles);
}

/// The product of rows of a window, `[.., DK]`, with a state, through `tile`.
#[cube]
fn multiply_state<E: Float>(
    source: &[E],
    rows: &Matrix,
    state: &Array<Quad>,
    tile: &mut Shared<[Quad]>,
    stage: &mut Stage,
    #[comptime] key_tiles: usize,
) -> Array<Quad> {
    let place = comptime!(Place {
        first: 0,
        lanes: LANES,
    });
    let mut block = zeros(4usize);
    #[unroll]
    for t in 0..key_tiles {
        sync_cube();
        put(state, comptime!(4 * t), tile, LANES);
        let operand = part(rows, 0usize, comptime!(t * TILE));
        let depth = min(operand.columns, TILE);
        add_product_with_tile::<E>(
            source,
            &operand,
            Order::AsStored,
            &*tile,
            depth,
            stage,
            &mut block,
            place,
        );
    }
    block
}

/// Adds the gradient of a slot: that of the caller, if the state was requested, then those of the
/// paths that start there, one after another.
#[cube]
fn add_slot(
    state_grads: &[f32],
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
    for child in problem.schedule[list]..problem.schedule[list + 1] {
        let path = problem.schedule[(problem.slot_children + child) as usize];
        let source = columns_of(problem, (problem.requested + path) as usize, place);
        add_state(state_grads, &source, current, key_tiles);
    }
}

/// The cube's columns of a state.
#[cube]
fn columns_of(problem: &Problem, index: usize, place: &PathTile) -> Matrix {
    part(&state(problem, index, place.head), 0usize, place.column)
}

/// Reads the unit's part of a state.
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

/// Adds the unit's part of a state.
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

/// Writes the unit's part of a state.
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
