//! Kernels: one vector of heads of one row per unit. Each cube sums the gradients of the heads'
//! parameters over a block of rows; a second kernel sums over the blocks.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{
    RowGroups, address_type, column_sum, contiguous, cubes, elem, empty, group_sum, units,
    units_per_cube, vector_size,
};
use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// Maximum number of blocks of rows over which gradients of parameters are summed first. It is
/// constant, so that the order of the sum is fixed.
const BLOCKS: usize = 512;

/// `ln(1 + e^x)` as `max(x, 0) + ln(1 + z)` with `z = e^-|x|`, which never overflows.
#[cube]
fn softplus<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let z = (-(x.abs())).exp();
    // The quotient compensates the rounding of the sum, which the `log1p` of some runtimes does
    // not.
    let sum = one + z;
    let lost = sum.equal(&one);
    let exact = sum.ln() * (z / select_many(lost, one, sum - one));
    max(x, Vector::zeroed()) + select_many(lost, z, exact)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn forward_kernel<F: Float, A: Float, D: Float, N: Size>(
    a: &[Vector<F, N>],
    a_log: &[Vector<A, N>],
    dt_bias: &[Vector<D, N>],
    gate: &mut [Vector<f32, N>],
    width: usize,
    total: usize,
    #[define(F, A, D)] _dtypes: [ElemType; 3],
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let column = ABSOLUTE_POS % width;
    let x = Vector::<f32, N>::cast_from(a[ABSOLUTE_POS]) + Vector::cast_from(dt_bias[column]);
    let rate = Vector::<f32, N>::cast_from(a_log[column]).exp();
    gate[ABSOLUTE_POS] = -(rate * softplus::<N>(x));
}

/// Gradients; those of the heads' parameters in blocks of rows.
#[derive(CubeType, CubeLaunch)]
struct Gradients<F: Float, N: Size> {
    a: Box<[Vector<F, N>]>,
    a_log: Box<[Vector<f32, N>]>,
    dt_bias: Box<[Vector<f32, N>]>,
}

/// The rows and their division into blocks.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Problem {
    rows: usize,
    /// Vectors per row.
    width: usize,
    rows_per_block: usize,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn backward_kernel<F: Float, A: Float, D: Float, N: Size>(
    a: &[Vector<F, N>],
    a_log: &[Vector<A, N>],
    dt_bias: &[Vector<D, N>],
    grad: &[Vector<f32, N>],
    gradients: &mut Gradients<F, N>,
    problem: Problem,
    #[comptime] groups: RowGroups,
    #[define(F, A, D)] _dtypes: [ElemType; 3],
) {
    let (rows, width, rows_per_block) = (problem.rows, problem.width, problem.rows_per_block);
    let lanes = comptime!(groups.lanes as usize);
    let above = comptime!(groups.groups());
    let columns = width.div_ceil(lanes);
    let column = CUBE_POS % columns * lanes + UNIT_POS as usize % lanes;
    let block = CUBE_POS / columns;
    let first = block * rows_per_block;
    if first >= rows {
        terminate!();
    }

    let mut sum_a_log = Vector::<f32, N>::zeroed();
    let mut sum_dt_bias = Vector::<f32, N>::zeroed();
    if column < width {
        let rate = -(Vector::<f32, N>::cast_from(a_log[column]).exp());
        let bias = Vector::<f32, N>::cast_from(dt_bias[column]);
        for step in 0..rows_per_block / above {
            let row = first + step * above + UNIT_POS as usize / lanes;
            if row < rows {
                let at = row * width + column;
                let x = Vector::<f32, N>::cast_from(a[at]) + bias;
                // g = -e^A softplus(x): dg/dx = -e^A sigmoid(x), dg/dA = g.
                let along = grad[at] * rate;
                let one = Vector::<f32, N>::new(1.0f32);
                let grad_x = along / (one + (-x).exp());
                sum_a_log += along * softplus::<N>(x);
                sum_dt_bias += grad_x;
                gradients.a[at] = Vector::cast_from(grad_x);
            }
        }
    }
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime!(groups.units as usize));
    let sum_a_log = group_sum::<N>(sum_a_log, &mut shared, groups);
    let sum_dt_bias = group_sum::<N>(sum_dt_bias, &mut shared, groups);
    if UNIT_POS < groups.lanes && column < width {
        gradients.a_log[block * width + column] = sum_a_log;
        gradients.dt_bias[block * width + column] = sum_dt_bias;
    }
}

fn vector(client: &Client, a: &CubeTensor, a_log: &CubeTensor, dt_bias: &CubeTensor) -> usize {
    let dtypes = [a.dtype, a_log.dtype, dt_bias.dtype];
    vector_size(client, &dtypes, a.meta.shape()[1])
}

/// See [`crate::TreeNnOps::decay_gate`].
pub(crate) fn forward(a: CubeTensor, a_log: CubeTensor, dt_bias: CubeTensor) -> CubeTensor {
    let [a, a_log, dt_bias] = contiguous([a, a_log, dt_bias]);
    let client = a.client.clone();
    let [rows, heads] = [a.meta.shape()[0], a.meta.shape()[1]];
    let vector = vector(&client, &a, &a_log, &dt_bias);
    let width = heads / vector;
    let gate = empty(&a, [rows, heads], DType::F32);
    let (count, dim) = units(&client, rows * width);
    // SAFETY: the shapes are those of the tensors.
    unsafe {
        forward_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type(&[&gate]),
            vector,
            a.clone().into_buffer_arg(),
            a_log.clone().into_buffer_arg(),
            dt_bias.clone().into_buffer_arg(),
            gate.clone().into_buffer_arg(),
            width,
            rows * width,
            [elem(a.dtype), elem(a_log.dtype), elem(dt_bias.dtype)],
        );
    }
    gate
}

/// See [`crate::TreeNnOps::decay_gate_backward`].
pub(crate) fn backward(
    a: CubeTensor,
    a_log: CubeTensor,
    dt_bias: CubeTensor,
    grad: CubeTensor,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [a, a_log, dt_bias, grad] = contiguous([a, a_log, dt_bias, grad]);
    let client = a.client.clone();
    let [rows, heads] = [a.meta.shape()[0], a.meta.shape()[1]];
    let vector = vector(&client, &a, &a_log, &dt_bias);
    let width = heads / vector;
    let units = units_per_cube(&client);
    let groups = RowGroups {
        units,
        lanes: (width.next_power_of_two() as u32).min(units),
        plane: 1,
    };
    let rows_per_block = rows.div_ceil(BLOCKS).next_multiple_of(groups.groups());
    let blocks = rows.div_ceil(rows_per_block);
    let grad_a = empty(&a, [rows, heads], a.dtype);
    let [grad_a_log, grad_dt_bias] = [0; 2].map(|_| empty(&a, [blocks, heads], DType::F32));
    let columns = width.div_ceil(groups.lanes as usize);
    let (count, dim) = cubes(&client, blocks * columns, units);
    // SAFETY: the shapes are those of the tensors; units without a row or column store nothing.
    unsafe {
        backward_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type(&[&grad, &grad_a_log]),
            vector,
            a.clone().into_buffer_arg(),
            a_log.clone().into_buffer_arg(),
            dt_bias.clone().into_buffer_arg(),
            grad.into_buffer_arg(),
            GradientsLaunch::new(
                grad_a.clone().into_buffer_arg(),
                grad_a_log.clone().into_buffer_arg(),
                grad_dt_bias.clone().into_buffer_arg(),
            ),
            ProblemLaunch::new(rows, width, rows_per_block),
            groups,
            [elem(a.dtype), elem(a_log.dtype), elem(dt_bias.dtype)],
        );
    }
    (
        grad_a,
        column_sum(grad_a_log, [blocks, heads], a_log.dtype),
        column_sum(grad_dt_bias, [blocks, heads], dt_bias.dtype),
    )
}
