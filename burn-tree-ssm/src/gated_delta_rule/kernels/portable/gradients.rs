//! The gradients of the inputs of a window, from those of its updates and of the state after it.
//!
//! With `Tg = E . T0`, the inverse of `I + E . A`, the updates solve
//! `(I + E . A) U = diag(beta) (V - diag(e^G) K H)`. So `X = Tg^T dU` is the gradient of the right
//! side, and `-X U^T`, strictly below the diagonal, that of `E . A`.
//!
//! The log decay of a row scales everything that passes from above it, the state before the window
//! and the rows there, to itself and the rows below: its gradient is the sum of what passes. What
//! does not pass is not part of any sum: it would cancel only up to rounding, which is large beside
//! what passes under strong decay.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::gates::{add_to_gates, sum_passing};
use super::tile::{
    Order, Quad, SQUARE_LANES, SQUARE_LEN, SQUARE_STRIDE, TILE, UNIT_ROWS, add_product,
    add_product_of_square, block_column, block_row, is_first, new_stage, part, put, read,
    sum_columns, transposed, write, write_product_of_square, zeros,
};
use super::window::{
    GRAD_BETA, GRAD_LOG_DECAY, GRAD_SUM, Problem, decay, head_key_rows, inverse_rows, key_rows,
    load_gates, scale_by_decays, value_rows, window_of_cube, window_state,
};

/// `X = Tg^T dU`, in place of `dU`, the gradient `diag(beta) X` of the values, and what
/// `<X_j, v_j>` adds to that of beta. One cube for each window and value head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn value_gradients<E: Float>(
    value: &[E],
    inverse: &[E],
    grad_updates: &mut [E],
    gate_values: &mut [f32],
    schedule: &[u32],
    grad_value: &mut [E],
    problem: Problem,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let window = window_of_cube(schedule, &problem);
    let gates = load_gates(&*gate_values, schedule, &problem, &window);
    let values = value_rows(&problem, &window);
    let mut stage = new_stage(SQUARE_LANES);
    let mut square = Shared::<[Quad]>::new_slice(SQUARE_LEN);
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);

    let source = inverse_rows(&problem, &window);
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
    add_to_gates(sums, gate_values, GRAD_BETA, &problem, &window);
}

/// The gradient of the queries of a value head, `[R, HV, DK]`: `e^G H dO + dP K`, scaled, with
/// `dP = E . (dO U^T)`; and what `<e^G H dO, Q>` adds to those of the sums of the log decay. One
/// cube for each window and value head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn query_gradients<E: Float>(
    query: &[E],
    key: &[E],
    grad_output: &[E],
    updates: &[E],
    window_states: &[E],
    gate_values: &mut [f32],
    schedule: &[u32],
    grad_query: &mut [f32],
    problem: Problem,
    scale: f32,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let window = window_of_cube(schedule, &problem);
    let gates = load_gates(&*gate_values, schedule, &problem, &window);
    let keys = key_rows(&problem, &window);
    let values = value_rows(&problem, &window);
    let state = window_state(&problem, &window);
    let mut stage = new_stage(SQUARE_LANES);
    let mut square = Shared::<[Quad]>::new_slice(SQUARE_LEN);
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);

    let mut block = zeros(4usize);
    add_product::<E, E>(
        grad_output,
        &values,
        Order::AsStored,
        updates,
        &values,
        Order::Transposed,
        values.columns,
        &mut stage,
        &mut block,
    );
    scale_by_decays(&mut block, &gates, scale, false);
    put(&block, 0usize, &mut square, SQUARE_LANES);

    let targets = head_key_rows(&problem, &window);
    let mut decay_sums = Quad::zeroed();
    let mut from = 0usize;
    while from < keys.columns {
        let mut block = zeros(4usize);
        add_product::<E, E>(
            grad_output,
            &values,
            Order::AsStored,
            window_states,
            &part(&state, from, 0usize),
            Order::Transposed,
            values.columns,
            &mut stage,
            &mut block,
        );
        let mut products = Quad::zeroed();
        #[unroll]
        for r in 0..4usize {
            block[r] *= Quad::new(scale * gates.sums[row + r].exp());
            let query = read::<E>(query, &keys, row + r, from + column);
            products.insert(r, block[r].dot(query));
        }
        decay_sums += products;
        let operand = part(&keys, 0usize, from);
        add_product_of_square::<E>(&square, key, &operand, window.rows, &mut stage, &mut block);
        #[unroll]
        for r in 0..4usize {
            write::<f32>(block[r], grad_query, &targets, row + r, from + column);
        }
        from += TILE;
    }
    let sums = sum_columns(decay_sums, &mut square);
    add_to_gates(sums, gate_values, GRAD_SUM, &problem, &window);
}

/// What pairs of rows of a window add to the gradients of its keys, `(N + N^T) K + dP^T Q`
/// (`[R, HV, DK]`), and of its gates; `N = diag(beta) dL`, `dL` the gradient of `K K^T` below the
/// diagonal. One cube for each window and value head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn key_gradients_of_pairs<E: Float>(
    query: &[E],
    key: &[E],
    grad_output: &[E],
    updates: &[E],
    x: &[E],
    gate_values: &mut [f32],
    schedule: &[u32],
    grad_key: &mut [f32],
    problem: Problem,
    scale: f32,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let window = window_of_cube(schedule, &problem);
    let gates = load_gates(&*gate_values, schedule, &problem, &window);
    let keys = key_rows(&problem, &window);
    let values = value_rows(&problem, &window);
    let targets = head_key_rows(&problem, &window);
    let mut stage = new_stage(SQUARE_LANES);
    let mut square = Shared::<[Quad]>::new_slice(SQUARE_LEN);
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);

    // Rows i, columns j of A.
    let mut grads = zeros(4usize);
    let mut products = zeros(4usize);
    add_product::<E, E>(
        x,
        &values,
        Order::AsStored,
        updates,
        &values,
        Order::Transposed,
        values.columns,
        &mut stage,
        &mut grads,
    );
    add_product::<E, E>(
        key,
        &keys,
        Order::AsStored,
        key,
        &keys,
        Order::Transposed,
        keys.columns,
        &mut stage,
        &mut products,
    );
    // What passes between the rows of each pair.
    let mut passed = zeros(4usize);
    let mut beta_sums = Quad::zeroed();
    #[unroll]
    for r in 0..4usize {
        let beta = gates.beta[row + r];
        let mut sum = 0.0f32;
        let mut of_row = Quad::zeroed();
        let mut grad = Quad::zeroed();
        #[unroll]
        for c in 0..4usize {
            let mut of_product = 0.0f32;
            if column + c < row + r {
                of_product = -decay(&gates, row + r, column + c) * grads[r].extract(c);
            }
            let of_beta = of_product * products[r].extract(c);
            sum += of_beta;
            of_row.insert(c, beta * of_beta);
            grad.insert(c, beta * of_product);
        }
        beta_sums.insert(r, sum);
        passed[r] = of_row;
        grads[r] = grad;
    }
    // Both halves; blocks on the diagonal hold both of their own.
    let mirrored = transposed(&grads);
    #[unroll]
    for r in 0..4usize {
        if row == column {
            square[(row + r) * SQUARE_STRIDE + column / 4] = grads[r] + mirrored[r];
        } else if column < row {
            square[(row + r) * SQUARE_STRIDE + column / 4] = grads[r];
            square[(column + r) * SQUARE_STRIDE + row / 4] = mirrored[r];
        }
    }
    write_product_of_square::<E, f32>(
        &square,
        key,
        &keys,
        window.rows,
        &mut stage,
        grad_key,
        &targets,
    );

    // Rows j, columns i of P: its transpose.
    let mut grads = zeros(4usize);
    let mut products = zeros(4usize);
    add_product::<E, E>(
        updates,
        &values,
        Order::AsStored,
        grad_output,
        &values,
        Order::Transposed,
        values.columns,
        &mut stage,
        &mut grads,
    );
    add_product::<E, E>(
        key,
        &keys,
        Order::AsStored,
        query,
        &keys,
        Order::Transposed,
        keys.columns,
        &mut stage,
        &mut products,
    );
    scale_by_decays(&mut grads, &gates, scale, true);
    #[unroll]
    for r in 0..4usize {
        products[r] *= grads[r];
    }
    sync_cube();
    put(&grads, 0usize, &mut square, SQUARE_LANES);
    let mut from = 0usize;
    while from < keys.columns {
        let mut block = zeros(4usize);
        #[unroll]
        for r in 0..4usize {
            block[r] = read::<f32>(&*grad_key, &targets, row + r, from + column);
        }
        let operand = part(&keys, 0usize, from);
        add_product_of_square::<E>(
            &square,
            query,
            &operand,
            window.rows,
            &mut stage,
            &mut block,
        );
        #[unroll]
        for r in 0..4usize {
            write::<f32>(block[r], grad_key, &targets, row + r, from + column);
        }
        from += TILE;
    }

    sync_cube();
    put(&passed, 0usize, &mut square, SQUARE_LANES);
    sync_cube();
    let mirrored = transposed(&products);
    #[unroll]
    for r in 0..4usize {
        square[(column + r) * SQUARE_STRIDE + row / 4] += mirrored[r];
    }
    let sums = sum_passing(&gates, &mut square);
    add_to_gates(sums, gate_values, GRAD_LOG_DECAY, &problem, &window);
    let sums = sum_columns(beta_sums, &mut square);
    add_to_gates(sums, gate_values, GRAD_BETA, &problem, &window);
}

/// What the states before and after a window add to the gradients of its keys,
/// `H dY + diag(E_last) U dS^T` with `dY = -diag(e^G beta) X` (`[R, HV, DK]`), and of its gates.
/// One cube for each window and value head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn key_gradients_of_states<E: Float>(
    key: &[E],
    updates: &[E],
    x: &[E],
    window_states: &[E],
    window_grads: &[E],
    gate_values: &mut [f32],
    schedule: &[u32],
    grad_key: &mut [f32],
    problem: Problem,
    #[define(E)] _stored: ElemType,
) {
    if CUBE_POS >= problem.items as usize {
        terminate!();
    }
    let window = window_of_cube(schedule, &problem);
    let gates = load_gates(&*gate_values, schedule, &problem, &window);
    let keys = key_rows(&problem, &window);
    let values = value_rows(&problem, &window);
    let targets = head_key_rows(&problem, &window);
    let state = window_state(&problem, &window);
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
        let mut before = zeros(4usize);
        let mut after = zeros(4usize);
        add_product::<E, E>(
            x,
            &values,
            Order::AsStored,
            window_states,
            &here,
            Order::Transposed,
            values.columns,
            &mut stage,
            &mut before,
        );
        add_product::<E, E>(
            updates,
            &values,
            Order::AsStored,
            window_grads,
            &here,
            Order::Transposed,
            values.columns,
            &mut stage,
            &mut after,
        );
        let mut of_before = Quad::zeroed();
        let mut of_after = Quad::zeroed();
        #[unroll]
        for r in 0..4usize {
            before[r] *= Quad::new(-gates.sums[row + r].exp());
            after[r] *= Quad::new(decay(&gates, last, row + r));
            let key = read::<E>(key, &keys, row + r, from + column);
            of_before.insert(r, before[r].dot(key));
            of_after.insert(r, after[r].dot(key));
            let sum = read::<f32>(&*grad_key, &targets, row + r, from + column)
                + before[r] * Quad::new(gates.beta[row + r])
                + after[r];
            write::<f32>(sum, grad_key, &targets, row + r, from + column);
        }
        before_sums += of_before;
        after_sums += of_after;
        let mut column_from = 0usize;
        while column_from < values.columns {
            #[unroll]
            for r in 0..4usize {
                // Rows past this tile belong to the next.
                let at = column_from + column;
                carried += read::<E>(window_states, &here, row + r, at)
                    * read::<E>(window_grads, &here, row + r, at);
            }
            column_from += TILE;
        }
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
        add_to_gates(of_sums, gate_values, GRAD_SUM, &problem, &window);
        add_to_gates(before, gate_values, GRAD_BETA, &problem, &window);
        let quads = UNIT_POS as usize * SQUARE_STRIDE;
        scratch[quads] = after;
        scratch[quads + 1] = through;
    }
    sync_cube();
    // To the state after the window, all its rows pass what comes from above: if there is one, they
    // are a piece of a node.
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
    add_to_gates(of_rows, gate_values, GRAD_LOG_DECAY, &problem, &window);
}
