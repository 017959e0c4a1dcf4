//! The gradients of the queries.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::gates::add_to_gates;
use super::super::products::{add_product_of_square, new_stage, product_of_rows};
use super::super::tile::{
    Quad, SQUARE_LANES, SQUARE_LEN, TILE, block_column, block_row, part, put, read, sum_columns,
    write,
};
use super::super::window::{
    GRAD_SUM, Problem, head_key_rows, key_rows, load_gates, scale_by_decays, value_rows,
    window_of_cube, window_state,
};

/// What [`query_gradients`] reads besides gates.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct QueryGradientInputs<E: Float> {
    /// `[R, HK, DK]`
    pub query: Box<[E]>,
    /// `[R, HK, DK]`
    pub key: Box<[E]>,
    /// `[R, HV, DV]`
    pub grad_output: Box<[E]>,
    /// `[R, HV, DV]`
    pub updates: Box<[E]>,
    /// `[W, HV, DK, DV]`
    pub window_states: Box<[E]>,
}

/// The gradient of the queries of a value head, `[R, HV, DK]`: `e^G H dO + dP K`, scaled, with
/// `dP = E . (dO U^T)`; and what `<e^G H dO, Q>` adds to those of the sums of the log decay. One
/// cube for each window and value head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn query_gradients<E: Float>(
    inputs: &QueryGradientInputs<E>,
    gate_values: &mut [f32],
    grad_query: &mut [f32],
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
    let state = window_state(problem, &window);
    let mut stage = new_stage(SQUARE_LANES);
    let mut square = Shared::<[Quad]>::new_slice(SQUARE_LEN);
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);

    let mut block = product_of_rows::<E>(
        &inputs.grad_output,
        &values,
        &inputs.updates,
        &values,
        &mut stage,
    );
    scale_by_decays(&mut block, &gates, problem.scale, false);
    put(&block, 0usize, &mut square, SQUARE_LANES);

    let targets = head_key_rows(problem, &window);
    let mut decay_sums = Quad::zeroed();
    let mut from = 0usize;
    while from < keys.columns {
        let states = part(&state, from, 0usize);
        let mut block = product_of_rows::<E>(
            &inputs.grad_output,
            &values,
            &inputs.window_states,
            &states,
            &mut stage,
        );
        let mut products = Quad::zeroed();
        #[unroll]
        for r in 0..4usize {
            block[r] *= Quad::new(problem.scale * gates.sums[row + r].exp());
            let query = read::<E>(&inputs.query, &keys, row + r, from + column);
            products.insert(r, block[r].dot(query));
        }
        decay_sums += products;
        let operand = part(&keys, 0usize, from);
        add_product_of_square::<E>(
            &square,
            &inputs.key,
            &operand,
            window.rows,
            &mut stage,
            &mut block,
        );
        #[unroll]
        for r in 0..4usize {
            write::<f32>(block[r], grad_query, &targets, row + r, from + column);
        }
        from += TILE;
    }
    let sums = sum_columns(decay_sums, &mut square);
    add_to_gates(sums, gate_values, GRAD_SUM, problem, &window);
}
