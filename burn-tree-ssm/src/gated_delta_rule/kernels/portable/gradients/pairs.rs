//! What pairs of rows of a window add to the gradients of keys and gates.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::gates::{add_to_gates, sum_passing};
use super::super::products::{
    Stage, add_product_of_square, new_stage, product_of_rows, write_product_of_square,
};
use super::super::tile::{
    Matrix, Quad, SQUARE_LANES, SQUARE_LEN, SQUARE_STRIDE, TILE, block_column, block_row, part,
    put, read, sum_columns, transposed, write, zeros,
};
use super::super::window::{
    GRAD_BETA, GRAD_LOG_DECAY, Gates, Problem, decay, head_key_rows, key_rows, load_gates,
    scale_by_decays, value_rows, window_of_cube,
};

/// What [`key_gradients_of_pairs`] reads besides gates.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PairGradientInputs<E: Float> {
    /// `[R, HK, DK]`
    pub query: Box<[E]>,
    /// `[R, HK, DK]`
    pub key: Box<[E]>,
    /// `[R, HV, DV]`
    pub grad_output: Box<[E]>,
    /// `[R, HV, DV]`
    pub updates: Box<[E]>,
    /// `[R, HV, DV]`
    pub x: Box<[E]>,
}

/// What pairs of rows of a window add to the gradients of its keys, `(N + N^T) K + dP^T Q`
/// (`[R, HV, DK]`), and of its gates; `N = diag(beta) dL`, `dL` the gradient of `K K^T` below the
/// diagonal. One cube for each window and value head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn key_gradients_of_pairs<E: Float>(
    inputs: &PairGradientInputs<E>,
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
    let mut stage = new_stage(SQUARE_LANES);
    let mut square = Shared::<[Quad]>::new_slice(SQUARE_LEN);

    // Rows i, columns j of A.
    let mut grads = product_of_rows::<E>(&inputs.x, &values, &inputs.updates, &values, &mut stage);
    let products = product_of_rows::<E>(&inputs.key, &keys, &inputs.key, &keys, &mut stage);
    let (passed, beta_sums) = similarity_gradients(&mut grads, &products, &gates);
    put_symmetric(&grads, &mut square);
    write_product_of_square::<E, f32>(
        &square,
        &inputs.key,
        &keys,
        window.rows,
        &mut stage,
        grad_key,
        &targets,
    );

    // Rows j, columns i of P: its transpose.
    let mut grads = product_of_rows::<E>(
        &inputs.updates,
        &values,
        &inputs.grad_output,
        &values,
        &mut stage,
    );
    let mut products = product_of_rows::<E>(&inputs.key, &keys, &inputs.query, &keys, &mut stage);
    scale_by_decays(&mut grads, &gates, problem.scale, true);
    #[unroll]
    for r in 0..4usize {
        products[r] *= grads[r];
    }
    sync_cube();
    put(&grads, 0usize, &mut square, SQUARE_LANES);
    add_product_to::<E>(
        grad_key,
        &targets,
        &square,
        &inputs.query,
        &keys,
        window.rows,
        &mut stage,
    );

    sync_cube();
    put(&passed, 0usize, &mut square, SQUARE_LANES);
    sync_cube();
    add_transposed(&products, &mut square);
    let sums = sum_passing(&gates, &mut square);
    add_to_gates(sums, gate_values, GRAD_LOG_DECAY, problem, &window);
    let sums = sum_columns(beta_sums, &mut square);
    add_to_gates(sums, gate_values, GRAD_BETA, problem, &window);
}

/// Makes `N` of `X U^T` in `grads`. Returns what passes between the rows of each pair, `N . K K^T`,
/// and its sums over columns without beta; `products` is `K K^T`.
#[cube]
fn similarity_gradients(
    grads: &mut Array<Quad>,
    products: &Array<Quad>,
    gates: &Gates,
) -> (Array<Quad>, Quad) {
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);
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
                of_product = -decay(gates, row + r, column + c) * grads[r].extract(c);
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
    (passed, beta_sums)
}

/// Puts the sum of a strictly lower triangular tile and its transpose into shared memory.
#[cube]
fn put_symmetric(block: &Array<Quad>, square: &mut Shared<[Quad]>) {
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);
    // Both halves; blocks on the diagonal hold both of their own.
    let mirrored = transposed(block);
    #[unroll]
    for r in 0..4usize {
        if row == column {
            square[(row + r) * SQUARE_STRIDE + column / 4] = block[r] + mirrored[r];
        } else if column < row {
            square[(row + r) * SQUARE_STRIDE + column / 4] = block[r];
            square[(column + r) * SQUARE_STRIDE + row / 4] = mirrored[r];
        }
    }
}

/// Adds the transpose of a tile to that in shared memory.
#[cube]
fn add_transposed(block: &Array<Quad>, square: &mut Shared<[Quad]>) {
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);
    let mirrored = transposed(block);
    #[unroll]
    for r in 0..4usize {
        square[(column + r) * SQUARE_STRIDE + row / 4] += mirrored[r];
    }
}

/// Adds to rows of `target` the product of a square tile in shared memory with `depth` rows of a
/// matrix.
#[cube]
fn add_product_to<E: Float>(
    target: &mut [f32],
    target_matrix: &Matrix,
    square: &Shared<[Quad]>,
    right: &[E],
    right_matrix: &Matrix,
    depth: usize,
    stage: &mut Stage,
) {
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);
    let mut from = 0usize;
    while from < right_matrix.columns {
        let mut block = zeros(4usize);
        #[unroll]
        for r in 0..4usize {
            block[r] = read::<f32>(&*target, target_matrix, row + r, from + column);
        }
        let operand = part(right_matrix, 0usize, from);
        add_product_of_square::<E>(square, right, &operand, depth, stage, &mut block);
        #[unroll]
        for r in 0..4usize {
            write::<f32>(block[r], target, target_matrix, row + r, from + column);
        }
        from += TILE;
    }
}
