//! `X` and the gradients of the values.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::gates::add_to_gates;
use super::super::products::{add_product_of_square, new_stage};
use super::super::tile::{
    Quad, SQUARE_LANES, SQUARE_LEN, TILE, block_column, block_row, part, put, read, sum_columns,
    transposed, write, zeros,
};
use super::super::window::{
    GRAD_BETA, Problem, decay, inverse_rows, load_gates, value_rows, window_of_cube,
};

/// `X = Tg^T dU`, in place of `dU`, the gradient `diag(beta) X` of the values, and what
/// `<X_j, v_j>` adds to that of beta. One cube for each window and value head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn value_gradients<E: Float>(
    value: &[E],
    inverse: &[E],
    grad_updates: &mut [E],
    gate_values: &mut [f32],
    grad_value: &mut [E],
    problem: &Problem,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let window = window_of_cube(problem);
    let gates = load_gates(&*gate_values, problem, &window);
    let values = value_rows(problem, &window);
    let mut stage = new_stage(SQUARE_LANES);
    let mut square = Shared::<[Quad]>::new_slice(SQUARE_LEN);
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);

    let source = inverse_rows(problem, &window);
    let mut factors = zeros(4usize);
    #[unroll]
    for r in 0..4usize {
        // At the mirrored place, to be read in rows.
        let mut quad = read::<E>(inverse, &source, column + r, row);
        #[unroll]
        for c in 0..4usize {
            let value = quad.extract(c) * decay(&gates, column + r, row + c);
            quad.insert(c, value);
        }
        factors[r] = quad;
    }
    put(&transposed(&factors), 0usize, &mut square, SQUARE_LANES);
    let mut beta_sums = Quad::zeroed();
    let mut from = 0usize;
    while from < values.columns {
        let mut block = zeros(4usize);
        let operand = part(&values, 0usize, from);
        add_product_of_square::<E>(
            &square,
            &*grad_updates,
            &operand,
            window.rows,
            &mut stage,
            &mut block,
        );
        // All units have staged what they need of these columns of dU.
        let mut products = Quad::zeroed();
        #[unroll]
        for r in 0..4usize {
            write::<E>(block[r], grad_updates, &values, row + r, from + column);
            let beta = Quad::new(gates.beta[row + r]);
            write::<E>(block[r] * beta, grad_value, &values, row + r, from + column);
            let value = read::<E>(value, &values, row + r, from + column);
            products.insert(r, block[r].dot(value));
        }
        beta_sums += products;
        from += TILE;
    }
    let sums = sum_columns(beta_sums, &mut square);
    add_to_gates(sums, gate_values, GRAD_BETA, problem, &window);
}
