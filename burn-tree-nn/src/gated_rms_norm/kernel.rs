//! Kernels: a group of units per row, each with its part of the row in registers. Each cube sums
//! the gradient of the weight over a block of rows; a second kernel sums over the blocks.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{
    RowLayout, address_type, column_sum, contiguous, cubes, elem, empty, group_sum,
    has_approximations, load_row, row_sum, sigmoid,
};
use burn_tree_kit::implementation::Unavailable;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::norm::kernel::{NormProblem, NormProblemLaunch, Rows};

/// Maximum number of blocks of rows over which the gradient of the weight is summed first. It is
/// constant, so that the order of the sum is fixed.
const BLOCKS: usize = 2048;

/// Compile-time parameters of a kernel, besides its element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Plan {
    layout: RowLayout,
    approximate: bool,
}

impl Plan {
    fn new(rows: &Rows, x: &CubeTensor) -> Self {
        Self {
            layout: rows.layout,
            approximate: has_approximations(&x.client),
        }
    }
}

/// Refuses rows that are too wide for the kernels.
pub(crate) fn check(x: &CubeTensor, weight: &CubeTensor) -> Result<(), Unavailable> {
    Rows::new(x, &[weight]).map(drop)
}

#[cube]
fn inverse_rms(squares: f32, numbers: usize, epsilon: f32) -> f32 {
    1.0f32 / (squares / f32::cast_from(numbers) + epsilon).sqrt()
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn forward_kernel<F: Float, W: Float, N: Size>(
    x: &[Vector<F, N>],
    gate: &[Vector<F, N>],
    weight: &[Vector<W, N>],
    y: &mut [Vector<F, N>],
    problem: NormProblem,
    #[comptime] plan: Plan,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    let (width, epsilon) = (problem.width, problem.epsilon);
    let layout = comptime!(plan.layout);
    let lanes = comptime!(layout.groups.lanes as usize);
    let lane = UNIT_POS as usize % lanes;
    let row = CUBE_POS * comptime!(layout.groups.groups()) + UNIT_POS as usize / lanes;
    let in_bounds = row < problem.rows;

    let values = load_row::<F, N>(x, row, in_bounds, width, layout);
    let gates = load_row::<F, N>(gate, row, in_bounds, width, layout);
    let mut squares = Vector::<f32, N>::zeroed();
    #[unroll]
    for load in 0..comptime!(layout.loads as usize) {
        let value = Vector::<f32, N>::cast_from(values[load]);
        squares += value * value;
    }
    let sum = row_sum(squares.vector_sum(), layout.groups);
    let factor = inverse_rms(sum, width * N::value(), epsilon);

    if in_bounds {
        #[unroll]
        for load in 0..comptime!(layout.loads as usize) {
            let column = lane + load * lanes;
            if layout.exact || column < width {
                let value = Vector::<f32, N>::cast_from(values[load]);
                let normed = Vector::<F, N>::cast_from(value * Vector::new(factor));
                let weighted = Vector::<f32, N>::cast_from(normed)
                    * Vector::<f32, N>::cast_from(weight[column]);
                let gate = Vector::<f32, N>::cast_from(gates[load]);
                let silu = gate * sigmoid::<N>(gate, plan.approximate);
                y[row * width + column] = Vector::cast_from(weighted * silu);
            }
        }
    }
}

/// Gradients; that of the weight in blocks of rows.
#[derive(CubeType, CubeLaunch)]
struct Gradients<F: Float, N: Size> {
    x: Box<[Vector<F, N>]>,
    gate: Box<[Vector<F, N>]>,
    weight: Box<[Vector<f32, N>]>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn backward_kernel<F: Float, W: Float, N: Size>(
    x: &[Vector<F, N>],
    gate: &[Vector<F, N>],
    weight: &[Vector<W, N>],
    grad: &[Vector<F, N>],
    gradients: &mut Gradients<F, N>,
    problem: NormProblem,
    #[comptime] plan: Plan,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    let (rows, width, rows_per_block) = (problem.rows, problem.width, problem.rows_per_block);
    let epsilon = problem.epsilon;
    let layout = comptime!(plan.layout);
    let groups = comptime!(layout.groups.groups());
    let lanes = comptime!(layout.groups.lanes as usize);
    let loads = comptime!(layout.loads as usize);
    let lane = UNIT_POS as usize % lanes;
    let first = CUBE_POS * rows_per_block;
    if first >= rows {
        terminate!();
    }

    let mut weights = Array::<Vector<f32, N>>::new(loads);
    let mut weight_sums = Array::<Vector<f32, N>>::new(loads);
    #[unroll]
    for load in 0..loads {
        let column = lane + load * lanes;
        weight_sums[load] = Vector::zeroed();
        weights[load] = Vector::zeroed();
        if layout.exact || column < width {
            weights[load] = Vector::cast_from(weight[column]);
        }
    }
    for step in 0..rows_per_block / groups {
        let row = first + step * groups + UNIT_POS as usize / lanes;
        let in_bounds = row < rows;
        let values = load_row::<F, N>(x, row, in_bounds, width, layout);
        let gates = load_row::<F, N>(gate, row, in_bounds, width, layout);
        let grads = load_row::<F, N>(grad, row, in_bounds, width, layout);
        let mut squares = Vector::<f32, N>::zeroed();
        #[unroll]
        for load in 0..loads {
            let value = Vector::<f32, N>::cast_from(values[load]);
            squares += value * value;
        }
        let sum = row_sum(squares.vector_sum(), layout.groups);
        let factor = Vector::<f32, N>::new(inverse_rms(sum, width * N::value(), epsilon));

        // y = w n silu(z), n = x r, r = rsqrt(mean x^2 + eps): dx = r (dn - n mean(dn n)).
        let mut grad_normed = Array::<Vector<f32, N>>::new(loads);
        let mut products = Vector::<f32, N>::zeroed();
        #[unroll]
        for load in 0..loads {
            let column = lane + load * lanes;
            let normed = Vector::<f32, N>::cast_from(values[load]) * factor;
            let gate = Vector::<f32, N>::cast_from(gates[load]);
            let open = sigmoid::<N>(gate, plan.approximate);
            let silu = gate * open;
            let grad = Vector::<f32, N>::cast_from(grads[load]);
            let grad_weighted = grad * silu;
            weight_sums[load] += grad_weighted * normed;
            grad_normed[load] = grad_weighted * weights[load];
            products += grad_normed[load] * normed;
            if in_bounds && (layout.exact || column < width) {
                // d silu / d z = s + silu (1 - s)
                let slope = open + silu * (Vector::<f32, N>::new(1.0f32) - open);
                gradients.gate[row * width + column] =
                    Vector::cast_from(grad * normed * weights[load] * slope);
            }
        }
        let sum = row_sum(products.vector_sum(), layout.groups);
        let mean = Vector::<f32, N>::new(sum / f32::cast_from(width * N::value()));
        if in_bounds {
            #[unroll]
            for load in 0..loads {
                let column = lane + load * lanes;
                if layout.exact || column < width {
                    let normed = Vector::<f32, N>::cast_from(values[load]) * factor;
                    gradients.x[row * width + column] =
                        Vector::cast_from((grad_normed[load] - normed * mean) * factor);
                }
            }
        }
    }

    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime!(layout.groups.units as usize));
    #[unroll]
    for load in 0..loads {
        let column = lane + load * lanes;
        let sum = group_sum::<N>(weight_sums[load], &mut shared, layout.groups);
        if UNIT_POS < layout.groups.lanes && (layout.exact || column < width) {
            gradients.weight[CUBE_POS * width + column] = sum;
        }
    }
}

/// See [`crate::TreeNnOps::gated_rms_norm`]; for arguments that [`check`] accepts.
pub(crate) fn forward(
    x: CubeTensor,
    gate: CubeTensor,
    weight: CubeTensor,
    epsilon: f64,
) -> CubeTensor {
    let [x, gate, weight] = contiguous([x, gate, weight]);
    let client = x.client.clone();
    let rows = Rows::checked(&x, &[&weight]);
    let y = empty(&x, x.meta.shape().clone(), x.dtype);
    let (count, dim) = cubes(&client, rows.cubes(), rows.layout.groups.units);
    // SAFETY: the shapes are those of the tensors; units without a row store nothing.
    unsafe {
        forward_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type(&[&x, &weight]),
            rows.vector,
            x.clone().into_buffer_arg(),
            gate.into_buffer_arg(),
            weight.clone().into_buffer_arg(),
            y.clone().into_buffer_arg(),
            NormProblemLaunch::new(rows.count, rows.width, 0, epsilon as f32),
            Plan::new(&rows, &x),
            [elem(x.dtype), elem(weight.dtype)],
        );
    }
    y
}

/// See [`crate::TreeNnOps::gated_rms_norm_backward`]; for arguments that [`check`] accepts.
pub(crate) fn backward(
    x: CubeTensor,
    gate: CubeTensor,
    weight: CubeTensor,
    grad: CubeTensor,
    epsilon: f64,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [x, gate, weight, grad] = contiguous([x, gate, weight, grad]);
    let client = x.client.clone();
    let rows = Rows::checked(&x, &[&weight]);
    let (rows_per_block, blocks) = rows.blocks(BLOCKS);
    let [grad_x, grad_gate] = [0; 2].map(|_| empty(&x, [rows.count, rows.size], x.dtype));
    let grad_weight = empty(&x, [blocks, rows.size], DType::F32);
    let (count, dim) = cubes(&client, blocks, rows.layout.groups.units);
    // SAFETY: the shapes are those of the tensors; units without a row store nothing.
    unsafe {
        backward_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type(&[&x, &weight, &grad_weight]),
            rows.vector,
            x.clone().into_buffer_arg(),
            gate.into_buffer_arg(),
            weight.clone().into_buffer_arg(),
            grad.into_buffer_arg(),
            GradientsLaunch::new(
                grad_x.clone().into_buffer_arg(),
                grad_gate.clone().into_buffer_arg(),
                grad_weight.clone().into_buffer_arg(),
            ),
            NormProblemLaunch::new(rows.count, rows.width, rows_per_block, epsilon as f32),
            Plan::new(&rows, &x),
            [elem(x.dtype), elem(weight.dtype)],
        );
    }
    let grad_weight = column_sum(grad_weight, [blocks, rows.size], weight.dtype);
    (grad_x, grad_gate, grad_weight)
}
