//! Kernels: a group of units per row, each with its part of the row in registers. Each cube sums
//! the gradient of the weight over a block of rows; a second kernel sums over the blocks.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{
    RowLayout, address_type, column_sum, contiguous, cubes, elem, empty, group_sum, load_row,
    row_sum,
};
use burn_tree_kit::implementation::Unavailable;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::scale::NormScale;
use crate::norm::kernel::{NormProblem, NormProblemLaunch, Rows};

/// Maximum number of blocks of rows over which the gradient of the weight is summed first. It is
/// constant, so that the order of the sum is fixed.
const BLOCKS: usize = 512;

/// Refuses rows that are too wide for the kernels.
pub(crate) fn check(x: &CubeTensor, weight: &CubeTensor) -> Result<(), Unavailable> {
    Rows::new(x, &[weight]).map(drop)
}

/// The factors of a vector of normalised values.
#[cube]
fn scale<W: Float, N: Size>(
    weight: Vector<W, N>,
    #[comptime] zero_centered: bool,
) -> Vector<f32, N> {
    let mut scale = Vector::<f32, N>::cast_from(weight);
    if comptime!(zero_centered) {
        scale += Vector::new(1.0f32);
    }
    scale
}

/// Compile-time parameters of a kernel, besides its element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Plan {
    layout: RowLayout,
    zero_centered: bool,
}

/// Results of the forward pass.
#[derive(CubeType, CubeLaunch)]
struct Results<F: Float, N: Size> {
    y: Box<[Vector<F, N>]>,
    inverse_rms: Box<[f32]>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn forward_kernel<F: Float, W: Float, N: Size>(
    x: &[Vector<F, N>],
    weight: &[Vector<W, N>],
    results: &mut Results<F, N>,
    problem: NormProblem,
    #[comptime] plan: Plan,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    let layout = comptime!(plan.layout);
    let zero_centered = comptime!(plan.zero_centered);
    let width = problem.width;
    let lanes = comptime!(layout.groups.lanes as usize);
    let lane = UNIT_POS as usize % lanes;
    let row = CUBE_POS * comptime!(layout.groups.groups()) + UNIT_POS as usize / lanes;
    let in_bounds = row < problem.rows;

    let values = load_row::<F, N>(x, row, in_bounds, width, layout);
    let mut squares = Vector::<f32, N>::zeroed();
    #[unroll]
    for load in 0..comptime!(layout.loads as usize) {
        let value = Vector::<f32, N>::cast_from(values[load]);
        squares += value * value;
    }
    let sum = row_sum(squares.vector_sum(), layout.groups);
    let mean = sum / f32::cast_from(width * N::value());
    let factor = 1.0f32 / (mean + problem.epsilon).sqrt();

    if in_bounds {
        #[unroll]
        for load in 0..comptime!(layout.loads as usize) {
            let column = lane + load * lanes;
            if layout.exact || column < width {
                let mut normed = Vector::<f32, N>::cast_from(values[load]) * Vector::new(factor);
                if comptime!(!zero_centered) {
                    normed = Vector::cast_from(Vector::<F, N>::cast_from(normed));
                }
                let scale = scale::<W, N>(weight[column], zero_centered);
                results.y[row * width + column] = Vector::cast_from(normed * scale);
            }
        }
        if lane == 0 {
            results.inverse_rms[row] = factor;
        }
    }
}

/// Gradients; that of the weight in blocks of rows.
#[derive(CubeType, CubeLaunch)]
struct Gradients<F: Float, N: Size> {
    x: Box<[Vector<F, N>]>,
    weight: Box<[Vector<f32, N>]>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn backward_kernel<F: Float, W: Float, N: Size>(
    x: &[Vector<F, N>],
    weight: &[Vector<W, N>],
    inverse_rms: &[f32],
    grad: &[Vector<F, N>],
    gradients: &mut Gradients<F, N>,
    problem: NormProblem,
    #[comptime] plan: Plan,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    let layout = comptime!(plan.layout);
    let zero_centered = comptime!(plan.zero_centered);
    let (rows, width, rows_per_block) = (problem.rows, problem.width, problem.rows_per_block);
    let groups = comptime!(layout.groups.groups());
    let lanes = comptime!(layout.groups.lanes as usize);
    let loads = comptime!(layout.loads as usize);
    let lane = UNIT_POS as usize % lanes;
    let group = UNIT_POS as usize / lanes;
    let first = CUBE_POS * rows_per_block;
    if first >= rows {
        terminate!();
    }

    let mut weight_sums = Array::<Vector<f32, N>>::new(loads);
    #[unroll]
    for load in 0..loads {
        weight_sums[load] = Vector::zeroed();
    }
    for step in 0..rows_per_block / groups {
        let row = first + step * groups + group;
        let in_bounds = row < rows;
        let mut factor = 0.0f32;
        if in_bounds {
            factor = inverse_rms[row];
        }
        let values = load_row::<F, N>(x, row, in_bounds, width, layout);
        let grads = load_row::<F, N>(grad, row, in_bounds, width, layout);
        let mut products = Vector::<f32, N>::zeroed();
        #[unroll]
        for load in 0..loads {
            let column = lane + load * lanes;
            let normed = Vector::<f32, N>::cast_from(values[load]) * Vector::new(factor);
            let grad = Vector::<f32, N>::cast_from(grads[load]);
            weight_sums[load] += grad * normed;
            if layout.exact || column < width {
                products += grad * scale::<W, N>(weight[column], zero_centered) * normed;
            }
        }
        let sum = row_sum(products.vector_sum(), layout.groups);
        let mean = Vector::<f32, N>::new(sum / f32::cast_from(width * N::value()));
        if in_bounds {
            // n = x r, r = rsqrt(mean x^2 + eps): dx = r (dn - n mean(dn n)).
            #[unroll]
            for load in 0..loads {
                let column = lane + load * lanes;
                if layout.exact || column < width {
                    let normed = Vector::<f32, N>::cast_from(values[load]) * Vector::new(factor);
                    let grad = Vector::<f32, N>::cast_from(grads[load]);
                    let grad_normed = grad * scale::<W, N>(weight[column], zero_centered);
                    gradients.x[row * width + column] =
                        Vector::cast_from((grad_normed - normed * mean) * Vector::new(factor));
                }
            }
        }
    }

    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime!(layout.groups.units as usize));
    #[unroll]
    for load in 0..loads {
        let column = lane + load * lanes;
        let sum = group_sum::<N>(weight_sums[load], &mut shared, layout.groups);
        if group == 0 && (layout.exact || column < width) {
            gradients.weight[CUBE_POS * width + column] = sum;
        }
    }
}

fn plan(rows: &Rows, scale: NormScale) -> Plan {
    Plan {
        layout: rows.layout,
        zero_centered: scale.adds_one(),
    }
}

/// See [`crate::TreeNnOps::rms_norm`]; for arguments that [`check`] accepts.
pub(crate) fn forward(
    x: CubeTensor,
    weight: CubeTensor,
    epsilon: f64,
    scale: NormScale,
) -> (CubeTensor, CubeTensor) {
    let [x, weight] = contiguous([x, weight]);
    let client = x.client.clone();
    let rows = Rows::checked(&x, &[&weight]);
    let y = empty(&x, [rows.count, rows.size], x.dtype);
    let inverse_rms = empty(&x, [rows.count, 1], DType::F32);
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
            weight.clone().into_buffer_arg(),
            ResultsLaunch::new(
                y.clone().into_buffer_arg(),
                inverse_rms.clone().into_buffer_arg(),
            ),
            NormProblemLaunch::new(rows.count, rows.width, 0, epsilon as f32),
            plan(&rows, scale),
            [elem(x.dtype), elem(weight.dtype)],
        );
    }
    (y, inverse_rms)
}

/// See [`crate::TreeNnOps::rms_norm_backward`]; for arguments that [`check`] accepts.
pub(crate) fn backward(
    x: CubeTensor,
    weight: CubeTensor,
    inverse_rms: CubeTensor,
    grad: CubeTensor,
    scale: NormScale,
) -> (CubeTensor, CubeTensor) {
    let [x, weight, inverse_rms, grad] = contiguous([x, weight, inverse_rms, grad]);
    let client = x.client.clone();
    let rows = Rows::checked(&x, &[&weight]);
    let (rows_per_block, blocks) = rows.blocks(BLOCKS);
    let grad_x = empty(&x, [rows.count, rows.size], x.dtype);
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
            weight.clone().into_buffer_arg(),
            inverse_rms.into_buffer_arg(),
            grad.into_buffer_arg(),
            GradientsLaunch::new(
                grad_x.clone().into_buffer_arg(),
                grad_weight.clone().into_buffer_arg(),
            ),
            NormProblemLaunch::new(rows.count, rows.width, rows_per_block, 0.0),
            plan(&rows, scale),
            [elem(x.dtype), elem(weight.dtype)],
        );
    }
    let grad_weight = column_sum(grad_weight, [blocks, rows.size], weight.dtype);
    (grad_x, grad_weight)
}
