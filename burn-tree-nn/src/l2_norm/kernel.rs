//! Kernels: a group of units per row, each with its part of the row in registers.

use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{
    RowLayout, address_type, contiguous, cubes, elem, empty, load_row, row_sum,
};
use burn_tree_kit::implementation::Unavailable;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::norm::kernel::Rows;

/// Refuses rows that are too wide for the kernels.
pub(crate) fn check(x: &CubeTensor) -> Result<(), Unavailable> {
    Rows::new(x, &[]).map(drop)
}

/// 0 for rows of zeros.
#[cube]
fn inverse_norm(squares: f32, epsilon: f32) -> f32 {
    let mut factor = 0.0f32;
    if squares > 0.0 {
        factor = 1.0f32 / (squares + epsilon).sqrt();
    }
    factor
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn forward_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    y: &mut [Vector<F, N>],
    rows: usize,
    width: usize,
    epsilon: f32,
    #[comptime] layout: RowLayout,
    #[define(F)] _dtype: ElemType,
) {
    let lanes = comptime!(layout.groups.lanes as usize);
    let lane = UNIT_POS as usize % lanes;
    let row = CUBE_POS * comptime!(layout.groups.groups()) + UNIT_POS as usize / lanes;
    let in_bounds = row < rows;

    let values = load_row::<F, N>(x, row, in_bounds, width, layout);
    let mut squares = Vector::<f32, N>::zeroed();
    #[unroll]
    for load in 0..comptime!(layout.loads as usize) {
        let value = Vector::<f32, N>::cast_from(values[load]);
        squares += value * value;
    }
    let factor = inverse_norm(row_sum(squares.vector_sum(), layout.groups), epsilon);

    if in_bounds {
        #[unroll]
        for load in 0..comptime!(layout.loads as usize) {
            let column = lane + load * lanes;
            if layout.exact || column < width {
                let value = Vector::<f32, N>::cast_from(values[load]);
                y[row * width + column] = Vector::cast_from(value * Vector::new(factor));
            }
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn backward_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    grad: &[Vector<F, N>],
    grad_x: &mut [Vector<F, N>],
    rows: usize,
    width: usize,
    epsilon: f32,
    #[comptime] layout: RowLayout,
    #[define(F)] _dtype: ElemType,
) {
    let lanes = comptime!(layout.groups.lanes as usize);
    let lane = UNIT_POS as usize % lanes;
    let row = CUBE_POS * comptime!(layout.groups.groups()) + UNIT_POS as usize / lanes;
    let in_bounds = row < rows;

    let values = load_row::<F, N>(x, row, in_bounds, width, layout);
    let grads = load_row::<F, N>(grad, row, in_bounds, width, layout);
    let mut squares = Vector::<f32, N>::zeroed();
    let mut products = Vector::<f32, N>::zeroed();
    #[unroll]
    for load in 0..comptime!(layout.loads as usize) {
        let value = Vector::<f32, N>::cast_from(values[load]);
        squares += value * value;
        products += value * Vector::cast_from(grads[load]);
    }
    let factor = inverse_norm(row_sum(squares.vector_sum(), layout.groups), epsilon);
    let along = row_sum(products.vector_sum(), layout.groups) * factor;

    if in_bounds {
        // y = x r, r = rsqrt(sum x^2 + eps): dx = r (dy - y sum(dy y)).
        #[unroll]
        for load in 0..comptime!(layout.loads as usize) {
            let column = lane + load * lanes;
            if layout.exact || column < width {
                let y = Vector::<f32, N>::cast_from(values[load]) * Vector::new(factor);
                let grad = Vector::<f32, N>::cast_from(grads[load]);
                grad_x[row * width + column] =
                    Vector::cast_from((grad - y * Vector::new(along)) * Vector::new(factor));
            }
        }
    }
}

/// See [`crate::TreeNnOps::l2_norm`]; for an input that [`check`] accepts.
pub(crate) fn forward(x: CubeTensor, epsilon: f64) -> CubeTensor {
    let [x] = contiguous([x]);
    let client = x.client.clone();
    let rows = Rows::checked(&x, &[]);
    let y = empty(&x, x.meta.shape().clone(), x.dtype);
    let (count, dim) = cubes(&client, rows.cubes(), rows.layout.groups.units);
    // SAFETY: the shapes are those of the tensors; units without a row store nothing.
    unsafe {
        forward_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type(&[&x]),
            rows.vector,
            x.clone().into_buffer_arg(),
            y.clone().into_buffer_arg(),
            rows.count,
            rows.width,
            epsilon as f32,
            rows.layout,
            elem(x.dtype),
        );
    }
    y
}

/// See [`crate::TreeNnOps::l2_norm_backward`]; for an input that [`check`] accepts.
pub(crate) fn backward(x: CubeTensor, grad: CubeTensor, epsilon: f64) -> CubeTensor {
    let [x, grad] = contiguous([x, grad]);
    let client = x.client.clone();
    let rows = Rows::checked(&x, &[]);
    let grad_x = empty(&x, x.meta.shape().clone(), x.dtype);
    let (count, dim) = cubes(&client, rows.cubes(), rows.layout.groups.units);
    // SAFETY: the shapes are those of the tensors; units without a row store nothing.
    unsafe {
        backward_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type(&[&x]),
            rows.vector,
            x.clone().into_buffer_arg(),
            grad.into_buffer_arg(),
            grad_x.clone().into_buffer_arg(),
            rows.count,
            rows.width,
            epsilon as f32,
            rows.layout,
            elem(x.dtype),
        );
    }
    grad_x
}
