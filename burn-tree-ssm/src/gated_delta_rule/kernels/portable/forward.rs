//! What is local to a window in the forward pass, and its output.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::products::{
    add_product_of_square, new_stage, product, product_of_rows, write_product_of_square,
};
use super::tile::{
    Quad, SQUARE_LANES, SQUARE_LEN, TILE, block_column, block_row, part, put, read, write, zeros,
};
use super::window::{
    Problem, head_key_rows, inverse_rows, key_rows, load_gates, scale_by_decays, sees, value_rows,
    window_of_cube, window_state,
};

/// Units of the cubes that work on a window.
pub(super) const UNITS: u32 = 256;

/// `T0 = (I + A)^-1` with `A_ij = beta_i k_i . k_j` for ancestors `j` of `i` other than itself, by
/// forward substitution. One cube for each window and value head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn window_inverse<E: Float>(
    key: &[E],
    gates: &[f32],
    inverse: &mut [E],
    problem: &Problem,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let stride = comptime!(TILE + 1);
    let window = window_of_cube(problem);
    let gates = load_gates(gates, problem, &window);
    let keys = key_rows(problem, &window);
    let mut stage = new_stage(SQUARE_LANES);
    let mut square = Shared::<[f32]>::new_slice(comptime!(TILE * stride));

    let block = product_of_rows::<E>(key, &keys, key, &keys, &mut stage);
    #[unroll]
    for r in 0..4usize {
        #[unroll]
        for c in 0..4usize {
            let row = block_row(SQUARE_LANES) + r;
            let column = block_column(SQUARE_LANES) + c;
            let mut value = 0.0f32;
            if column < row && sees(&gates, row, column) {
                value = gates.beta[row] * block[r].extract(c);
            }
            square[row * stride + column] = value;
        }
    }
    sync_cube();
    // Each unit solves for a column, for which row `column` of the upper triangle has room.
    let column = UNIT_POS as usize;
    if column < window.rows {
        for row in column + 1..window.rows {
            let mut sum = square[row * stride + column];
            for above in column + 1..row {
                sum += square[row * stride + above] * square[column * stride + above];
            }
            square[column * stride + row] = -sum;
        }
    }
    sync_cube();
    let target = inverse_rows(problem, &window);
    let mut at = UNIT_POS as usize;
    while at < TILE * TILE {
        let row = at / TILE;
        let column = at % TILE;
        if row < window.rows && column < window.rows {
            let mut value = 0.0f32;
            if column < row {
                value = square[column * stride + row];
            } else if column == row {
                value = 1.0f32;
            }
            inverse[target.start + row * target.stride + column] = E::cast_from(value);
        }
        at += CUBE_DIM as usize;
    }
}

/// What turns the state `H` before a window into the updates of its rows, `u - w H`:
/// `w = diag(e^G) T0 diag(beta) K` (`[R, HV, DK]`) and `u = (E . T0) diag(beta) V`
/// (`[R, HV, DV]`). One cube for each window and value head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn window_operators<E: Float>(
    key: &[E],
    value: &[E],
    inverse: &[E],
    gates: &[f32],
    w: &mut [E],
    u: &mut [E],
    problem: &Problem,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let window = window_of_cube(problem);
    let gates = load_gates(gates, problem, &window);
    let mut stage = new_stage(SQUARE_LANES);
    let mut square = Shared::<[Quad]>::new_slice(SQUARE_LEN);
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);

    let source = inverse_rows(problem, &window);
    let mut factors = zeros(4usize);
    #[unroll]
    for r in 0..4usize {
        let mut quad = read::<E>(inverse, &source, row + r, column);
        #[unroll]
        for c in 0..4usize {
            let value = quad.extract(c) * gates.beta[column + c];
            quad.insert(c, value);
        }
        factors[r] = quad;
    }
    put(&factors, 0usize, &mut square, SQUARE_LANES);
    let keys = key_rows(problem, &window);
    let targets = head_key_rows(problem, &window);
    let mut from = 0usize;
    while from < keys.columns {
        let mut block = zeros(4usize);
        let operand = part(&keys, 0usize, from);
        add_product_of_square::<E>(&square, key, &operand, window.rows, &mut stage, &mut block);
        #[unroll]
        for r in 0..4usize {
            let decay = Quad::new(gates.sums[row + r].exp());
            write::<E>(block[r] * decay, w, &targets, row + r, from + column);
        }
        from += TILE;
    }
    scale_by_decays(&mut factors, &gates, 1.0f32, false);
    sync_cube();
    put(&factors, 0usize, &mut square, SQUARE_LANES);
    let values = value_rows(problem, &window);
    write_product_of_square::<E, E>(&square, value, &values, window.rows, &mut stage, u, &values);
}

/// `O = e^G Q H + P U` with `P = E . (Q K^T)`, `Q` scaled, `H` the state before the window. One
/// cube for each window and value head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn window_output<E: Float>(
    query: &[E],
    key: &[E],
    updates: &[E],
    states: &[E],
    gates: &[f32],
    output: &mut [E],
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
    let state = window_state(problem, &window);
    let mut stage = new_stage(SQUARE_LANES);
    let mut square = Shared::<[Quad]>::new_slice(SQUARE_LEN);
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);

    let mut block = product_of_rows::<E>(query, &keys, key, &keys, &mut stage);
    scale_by_decays(&mut block, &gates, problem.scale, false);
    put(&block, 0usize, &mut square, SQUARE_LANES);
    let mut from = 0usize;
    while from < values.columns {
        let mut block = product::<E>(
            query,
            &keys,
            states,
            &part(&state, 0usize, from),
            &mut stage,
        );
        #[unroll]
        for r in 0..4usize {
            block[r] *= Quad::new(problem.scale * gates.sums[row + r].exp());
        }
        let operand = part(&values, 0usize, from);
        add_product_of_square::<E>(
            &square,
            updates,
            &operand,
            window.rows,
            &mut stage,
            &mut block,
        );
        #[unroll]
        for r in 0..4usize {
            write::<E>(block[r], output, &values, row + r, from + column);
        }
        from += TILE;
    }
}
