//! Sums over the rows of a matrix, in a fixed order.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::cube::{RowGroups, address_type, cubes, elem, empty, units_per_cube, vector_size};

/// Units per row of a cube of [`column_sum_kernel`].
const COLUMN_LANES: u32 = 4;

/// Rows that a unit loads at a time, so that their latencies overlap.
const ROWS_AT_A_TIME: usize = 4;

/// The sum over the groups of a cube of the `value` of the units with the same lane, in the order
/// of the groups. Valid in the units of the first group. `shared` has space for one value per unit.
/// All units of the cube must call it.
#[cube]
pub fn group_sum<N: Size>(
    value: Vector<f32, N>,
    shared: &mut Shared<[Vector<f32, N>]>,
    #[comptime] rows: RowGroups,
) -> Vector<f32, N> {
    let lanes = comptime!(rows.lanes as usize);
    shared[UNIT_POS as usize] = value;
    sync_cube();
    let mut sum = value;
    if UNIT_POS < rows.lanes {
        for group in 1..comptime!(rows.groups()) {
            sum += shared[group * lanes + UNIT_POS as usize];
        }
    }
    sync_cube();
    sum
}

/// `sums[c]` = sum of `values[.., c]`. Each unit of a column of the cube sums a strided subset of
/// the rows; the first unit adds these sums.
#[cube(launch_unchecked, address_type = "dynamic")]
fn column_sum_kernel<O: Float, N: Size>(
    values: &[Vector<f32, N>],
    sums: &mut [Vector<O, N>],
    rows: usize,
    width: usize,
    #[comptime] groups: RowGroups,
    #[define(O)] _dtype: ElemType,
) {
    let lanes = comptime!(groups.lanes);
    let column = CUBE_POS * comptime!(lanes as usize) + (UNIT_POS % lanes) as usize;
    let above = comptime!(groups.groups());
    let own = (UNIT_POS / lanes) as usize;
    let mut sum = Vector::<f32, N>::zeroed();
    if column < width {
        for step in 0..rows.div_ceil(above * ROWS_AT_A_TIME) {
            #[unroll]
            for part in 0..ROWS_AT_A_TIME {
                let row = (step * ROWS_AT_A_TIME + part) * above + own;
                let mut value = Vector::<f32, N>::zeroed();
                if row < rows {
                    value = values[row * width + column];
                }
                sum += value;
            }
        }
    }
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime!(groups.units as usize));
    let sum = group_sum::<N>(sum, &mut shared, groups);
    if own == 0 && column < width {
        sums[column] = Vector::cast_from(sum);
    }
}

/// Sums over rows, `[R, D]` -> `[D]`: `shape` is `[R, D]`, `values` is a contiguous f32 tensor of
/// at least `R * D` numbers, of which the first are used. The result has the dtype `dtype`; sums
/// are computed in f32 and in a fixed order.
///
/// # Panics
/// If `values` has fewer numbers.
pub fn column_sum(values: CubeTensor, shape: [usize; 2], dtype: DType) -> CubeTensor {
    let client = values.client.clone();
    let [rows, width] = shape;
    assert!(rows * width <= values.meta.num_elements());
    let sums = empty(&values, [width], dtype);
    let vector = vector_size(&client, &[DType::F32], width);
    let width = width / vector;
    let units = units_per_cube(&client);
    let groups = RowGroups {
        units,
        lanes: COLUMN_LANES.min(units),
        plane: 1,
    };
    let (count, dim) = cubes(&client, width.div_ceil(groups.lanes as usize), units);
    // SAFETY: `values` has at least this many numbers.
    unsafe {
        column_sum_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type(&[&values]),
            vector,
            values.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            rows,
            width,
            groups,
            elem(dtype),
        );
    }
    sums
}
