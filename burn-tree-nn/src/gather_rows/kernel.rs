//! Kernels: one vector of one row per unit, sums in two levels of fixed order.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{DeviceList, address_type, contiguous, elem, empty, units, vector_size};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::lists::SumLists;
use super::plan::GatherPlan;

#[cube(launch_unchecked, address_type = "dynamic")]
fn gather_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    indices: &[u32],
    output: &mut [Vector<F, N>],
    width: usize,
    total: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let row = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    output[ABSOLUTE_POS] = x[indices[row] as usize * width + column];
}

/// `output[r]` = sum of `values[reads[i]]` for `starts[r] <= i < starts[r + 1]`.
#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_kernel<F: Float, O: Float, N: Size>(
    values: &[Vector<F, N>],
    reads: &[u32],
    starts: &[u32],
    output: &mut [Vector<O, N>],
    width: usize,
    total: usize,
    #[define(F, O)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let row = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    let mut sum = Vector::<f32, N>::zeroed();
    for i in starts[row]..starts[row + 1] {
        sum += Vector::cast_from(values[reads[i as usize] as usize * width + column]);
    }
    output[ABSOLUTE_POS] = Vector::cast_from(sum);
}

/// Which rows are read for each row of the result.
#[derive(CubeType, CubeLaunch)]
struct Reads {
    reads: Box<[u32]>,
    starts: Box<[u32]>,
}

/// As [`sum_kernel`], but reads at or above `n_values` are rows of `parts`.
#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_with_parts_kernel<F: Float, O: Float, N: Size>(
    values: &[Vector<F, N>],
    parts: &[Vector<f32, N>],
    lists: &Reads,
    output: &mut [Vector<O, N>],
    n_values: u32,
    width: usize,
    total: usize,
    #[define(F, O)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let row = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    let mut sum = Vector::<f32, N>::zeroed();
    for i in lists.starts[row]..lists.starts[row + 1] {
        let read = lists.reads[i as usize];
        if read < n_values {
            sum += Vector::cast_from(values[read as usize * width + column]);
        } else {
            sum += parts[(read - n_values) as usize * width + column];
        }
    }
    output[ABSOLUTE_POS] = Vector::cast_from(sum);
}

/// See [`crate::TreeNnOps::gather_rows`].
pub(crate) fn forward(x: CubeTensor, plan: &GatherPlan) -> CubeTensor {
    let [x] = contiguous([x]);
    let indices = plan
        .device_indices
        .get(&x, |client| DeviceList::new(client, plan.indices()));
    let client = x.client.clone();
    let width = x.meta.shape()[1];
    let output = empty(&x, [plan.indices().len(), width], x.dtype);
    let vector = vector_size(&client, &[x.dtype], width);
    let width = width / vector;
    let total = plan.indices().len() * width;
    let (count, dim) = units(&client, total);
    // SAFETY: the plan is for the number of rows of `x`.
    unsafe {
        gather_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type(&[&x, &output]),
            vector,
            x.clone().into_buffer_arg(),
            indices.arg(),
            output.clone().into_buffer_arg(),
            width,
            total,
            elem(x.dtype),
        );
    }
    output
}

/// See [`crate::TreeNnOps::gather_rows_backward`]; the result has dtype `output`.
pub(crate) fn backward(grad: CubeTensor, plan: &GatherPlan, output: DType) -> CubeTensor {
    let [grad] = contiguous([grad]);
    let lists = plan
        .device_sums
        .get(&grad, |client| SumLists::new(client, &plan.two_level_sum()));
    match &lists.parts {
        None => sum(&grad, &lists.reads, &lists.starts, plan.rows(), output),
        Some(parts) => {
            let sums = sum(&grad, &parts.reads, &parts.starts, parts.count, DType::F32);
            sum_with_parts(&grad, sums, &lists, plan, output)
        }
    }
}

fn sum(
    values: &CubeTensor,
    reads: &DeviceList,
    starts: &DeviceList,
    rows: usize,
    dtype: DType,
) -> CubeTensor {
    let client = values.client.clone();
    let width = values.meta.shape()[1];
    let output = empty(values, [rows, width], dtype);
    let vector = vector_size(&client, &[values.dtype, dtype], width);
    let width = width / vector;
    let (count, dim) = units(&client, rows * width);
    // SAFETY: reads and starts are within bounds by construction of the plan.
    unsafe {
        sum_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type(&[values, &output]),
            vector,
            values.clone().into_buffer_arg(),
            reads.arg(),
            starts.arg(),
            output.clone().into_buffer_arg(),
            width,
            rows * width,
            [elem(values.dtype), elem(dtype)],
        );
    }
    output
}

fn sum_with_parts(
    values: &CubeTensor,
    parts: CubeTensor,
    lists: &SumLists,
    plan: &GatherPlan,
    dtype: DType,
) -> CubeTensor {
    let client = values.client.clone();
    let width = values.meta.shape()[1];
    let rows = plan.rows();
    let output = empty(values, [rows, width], dtype);
    let vector = vector_size(&client, &[values.dtype, dtype], width);
    let width = width / vector;
    let (count, dim) = units(&client, rows * width);
    // SAFETY: reads and starts are within bounds by construction of the plan.
    unsafe {
        sum_with_parts_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type(&[values, &parts, &output]),
            vector,
            values.clone().into_buffer_arg(),
            parts.into_buffer_arg(),
            ReadsLaunch::new(lists.reads.arg(), lists.starts.arg()),
            output.clone().into_buffer_arg(),
            plan.indices().len() as u32,
            width,
            rows * width,
            [elem(values.dtype), elem(dtype)],
        );
    }
    output
}
