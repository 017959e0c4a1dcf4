//! What the states around a window add to the gradients of keys and gates.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::gates::add_to_gates;
use super::super::products::{new_stage, product_of_rows};
use super::super::tile::{
    Matrix, Quad, SQUARE_LANES, SQUARE_LEN, SQUARE_STRIDE, TILE, UNIT_ROWS, block_column,
    block_row, is_first, part, read, sum_columns, write,
};
use super::super::window::{
    GRAD_BETA, GRAD_LOG_DECAY, GRAD_SUM, Problem, decay, head_key_rows, key_rows, load_gates,
    value_rows, window_of_cube, window_state,
};

/// What [`key_gradients_of_states`] reads besides gates.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct StateKeyGradientInputs<E: Float> {
    /// `[R, HK, DK]`
    pub key: Box<[E]>,
    /// `[R, HV, DV]`
    pub updates: Box<[E]>,
    /// `[R, HV, DV]`
    pub x: Box<[E]>,
    /// `[W, HV, DK, DV]`
    pub window_states: Box<[E]>,
    /// `[W, HV, DK, DV]`
    pub window_grads: Box<[E]>,
}

/// What the states before and after a window add to the gradients of its keys,
/// `H dY + diag(E_last) U dS^T` with `dY = -diag(e^G beta) X` (`[R, HV, DK]`), and of its gates.
/// One cube for each window and value head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn key_gradients_of_states<E: Float>(
    inputs: &StateKeyGradientInputs<E>,
    gate_values: &mut [f32],
    grad_key: &mut [f32],
    problem: &Problem,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let window = window_of_cube(problem);
    let gates = load_gates(&*gate_values, problem, &window);
    let keys = key_rows(problem, &window);
    let values = value_rows(problem, &window);
    let targets = head_key_rows(problem, &window);
    let state = window_state(problem, &window);
    let mut stage = new_stage(SQUARE_LANES);
    let mut scratch = Shared::<[Quad]>::new_slice(SQUARE_LEN);
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);
    let last = window.rows - 1;

    // By row: <dY, Y> / beta, and what the row adds to the state after the window, by its gradient.
    let mut before_sums = Quad::zeroed();
    let mut after_sums = Quad::zeroed();
    // <H, dS>, of the unit.
    let mut carried = Quad::zeroed();
    let mut from = 0usize;
    while from < keys.columns {
        let here = part(&state, from, 0usize);
        let mut before =
            product_of_rows::<E>(&inputs.x, &values, &inputs.window_states, &here, &mut stage);
        let mut after = product_of_rows::<E>(
            &inputs.updates,
            &values,
            &inputs.window_grads,
            &here,
            &mut stage,
        );
        let mut of_before = Quad::zeroed();
        let mut of_after = Quad::zeroed();
        #[unroll]
        for r in 0..4usize {
            before[r] *= Quad::new(-gates.sums[row + r].exp());
            after[r] *= Quad::new(decay(&gates, last, row + r));
            let key = read::<E>(&inputs.key, &keys, row + r, from + column);
            of_before.insert(r, before[r].dot(key));
            of_after.insert(r, after[r].dot(key));
            let sum = read::<f32>(&*grad_key, &targets, row + r, from + column)
                + before[r] * Quad::new(gates.beta[row + r])
                + after[r];
            write::<f32>(sum, grad_key, &targets, row + r, from + column);
        }
        before_sums += of_before;
        after_sums += of_after;
        carried = add_products::<E>(carried, &inputs.window_states, &inputs.window_grads, &here);
        from += TILE;
    }

    let before = sum_columns(before_sums, &mut scratch);
    let after = sum_columns(after_sums, &mut scratch);
    let through = sum_columns(carried, &mut scratch) * Quad::new(gates.sums[last].exp());
    if is_first() {
        let mut of_sums = Quad::zeroed();
        #[unroll]
        for c in 0..4usize {
            let row = UNIT_POS as usize * 4 + c;
            of_sums.insert(c, before.extract(c) * gates.beta[row]);
        }
        add_to_gates(of_sums, gate_values, GRAD_SUM, problem, &window);
        add_to_gates(before, gate_values, GRAD_BETA, problem, &window);
    }
    let of_rows = sum_passing_exit(after, through, &mut scratch);
    add_to_gates(of_rows, gate_values, GRAD_LOG_DECAY, problem, &window);
}

/// `carried` plus the unit's part of the products of two states, in a tile of their rows.
#[cube]
fn add_products<E: Float>(carried: Quad, states: &[E], grads: &[E], matrix: &Matrix) -> Quad {
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);
    let mut sum = carried;
    let mut from = 0usize;
    while from < matrix.columns {
        #[unroll]
        for r in 0..4usize {
            // Rows past this tile belong to the next.
            let at = from + column;
            sum += read::<E>(states, matrix, row + r, at) * read::<E>(grads, matrix, row + r, at);
        }
        from += TILE;
    }
    sum
}

/// For every row, the sum of what passes it to the state after the window: `through` of the state
/// before it, and `after` of the rows. If there is such a state, the rows are a piece of a node,
/// and pass what comes from above. The units of [`is_first`] have and get the numbers of four rows
/// each.
#[cube]
fn sum_passing_exit(after: Quad, through: Quad, scratch: &mut Shared<[Quad]>) -> Quad {
    if is_first() {
        let quads = UNIT_POS as usize * SQUARE_STRIDE;
        scratch[quads] = after;
        scratch[quads + 1] = through;
    }
    sync_cube();
    let mut of_rows = Quad::zeroed();
    if is_first() {
        let mut passed = Quad::zeroed();
        for unit in 0..UNIT_ROWS {
            passed += scratch[unit * SQUARE_STRIDE + 1];
        }
        for unit in 0..UNIT_POS as usize {
            passed += scratch[unit * SQUARE_STRIDE];
        }
        let mut sum = passed.vector_sum();
        #[unroll]
        for c in 0..4usize {
            of_rows.insert(c, sum);
            sum += after.extract(c);
        }
    }
    of_rows
}
