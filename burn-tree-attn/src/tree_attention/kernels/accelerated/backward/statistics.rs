//! What the backward kernels need of each query row besides its query and gradient.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use burn_tree_kit::cube::matrix::*;

/// Units of a cube of [`row_statistics`], two to a row.
pub(crate) const UNITS: usize = 256;

/// Numbers of rows.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct RowSizes {
    /// Of all heads, padded to whole tiles.
    pub n_rows: u32,
    /// Of a head.
    pub n_queries: u32,
    /// Of a head, padded to whole tiles.
    pub padded_queries: u32,
}

/// For every query row `log2(e) * log-sum-exp` (first half of `statistics`, `[B * Hq, P]` with `P`
/// the rows padded to whole tiles) and minus the sum of output times its gradient (second half).
/// Padding rows get infinity and 0, so that their probabilities, as powers of two of a score minus
/// infinity, are 0.
///
/// * `output`, `grad_output` `[B * Hq, N, D]` as 16-byte chunks, `log_sum_exp` `[B * Hq, N]`
///
/// Cubes: enough for two units per padded row.
#[cube(launch_unchecked)]
pub(crate) fn row_statistics<E: Float>(
    output: &[Vector<u32, Const<4>>],
    grad_output: &[Vector<u32, Const<4>>],
    log_sum_exp: &[f32],
    statistics: &mut [f32],
    sizes: &RowSizes,
    #[comptime] head_dim: usize,
    #[define(E)] _dtype: ElemType,
) {
    let chunks = comptime!(2 * head_dim / CHUNK);
    let at = CUBE_POS_X * comptime!((UNITS / 2) as u32) + UNIT_POS_X / 2;
    let half = UNIT_POS_X % 2;
    let (n_rows, n_queries) = (sizes.n_rows, sizes.n_queries);
    // All units take part in the exchange below.
    let row = min(at, n_rows - 1);
    let (head, query) = (row / sizes.padded_queries, row % sizes.padded_queries);
    let source = head * n_queries + min(query, n_queries - 1);

    let mut sum = 0.0f32;
    #[unroll]
    for i in 0..comptime!(chunks / 2) {
        let chunk = comptime!((2 * i) as u32) + half;
        let index = source as usize * chunks + chunk as usize;
        let (outputs, gradients) = (output[index], grad_output[index]);
        #[unroll]
        for word in 0..4usize {
            let (o, g) = (outputs.extract(word), gradients.extract(word));
            sum += unpack_low::<E>(o) * unpack_low::<E>(g);
            sum += unpack_high::<E>(o) * unpack_high::<E>(g);
        }
    }
    let sum = sum + shuffle_xor(sum, 1u32);
    if at < n_rows && half == 0 {
        let valid = query < n_queries;
        let exponent = log_sum_exp[source as usize] * comptime!(core::f32::consts::LOG2_E);
        statistics[row as usize] = select(valid, exponent, f32::INFINITY);
        statistics[(n_rows + row) as usize] = select(valid, -sum, 0.0f32);
    }
}
