//! `X`, from which all gradients within a window follow, and the gradient of the values.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::blocks::*;
use super::super::rows::HeadRows;
use super::super::words::*;
use super::cube_window::*;

/// Sets `x` to the plane's rows of `X = Tg^T dU`, rounded, and `with_values` to the lane's part of
/// the products of its rows with those of the values; writes the gradient of the values,
/// `diag(beta) X`.
///
/// `value`, `grad_value`: rows from the window's first on.
#[cube]
pub(super) fn multiply_inverse<E: Float>(
    x: &mut Array<Fragment>,
    with_values: &mut Array<f32>,
    window: &CubeWindow,
    lane_rows: &LaneRows,
    value: &HeadRows,
    grad_value: &HeadRows,
    #[comptime] config: WindowConfig,
) {
    let value_dim = comptime!(config.value_dim);
    let value_tiles = comptime!(value_dim / 8);
    let value_stride = comptime!(row_stride(value_dim) as u32);
    let square_stride = comptime!(row_stride(ROWS) as u32);
    let value_by_rows = lane_offset_by_rows(window.lane, value_dim);
    let square_by_columns = lane_offset_by_columns(window.lane, ROWS);
    let mut of_x = Array::<Accumulator>::new(value_tiles);
    clear(&mut of_x, value_tiles);
    for row_tile in window.plane..window.tiles {
        let packed = load_block(
            window.inverse + row_tile * 16 * square_stride + window.plane * 32 + square_by_columns,
            0usize,
            true,
        );
        let left = transposed_decayed::<E>(packed, row_tile * 16, window);
        add_rows::<E>(
            &mut of_x,
            left,
            window.grad_u + row_tile * 16 * value_stride + value_by_rows,
            value_dim,
        );
    }
    let row_bytes = value.row_bytes;
    let at = u64::cast_from(window.row) * row_bytes + u64::cast_from(window.lane % 4 * 4);
    let (from, to) = (value.first + at, grad_value.first + at);
    #[unroll]
    for half in 0..2usize {
        if window.row + comptime!(8 * half as u32) < window.length {
            let further = row_bytes * comptime!(8 * half as u64);
            let (from, to) = (from + further, to + further);
            let beta = if comptime!(half == 0) {
                lane_rows.beta
            } else {
                lane_rows.beta_8
            };
            let mut products = 0.0f32;
            #[unroll]
            for n in 0..value_tiles {
                let tile = of_x[n];
                let low = tile.extract(comptime!(2 * half));
                let high = tile.extract(comptime!(2 * half + 1));
                let values = load_word_global(from, comptime!(16 * n));
                products += low * unpack_low::<E>(values);
                products += high * unpack_high::<E>(values);
                store_word_global(to, comptime!(16 * n), pack::<E>(low * beta, high * beta));
            }
            with_values[half] = products;
        }
    }
    #[unroll]
    for k in 0..comptime!(value_dim / 16) {
        x[k] = pack_left::<E>(of_x[2 * k], of_x[2 * k + 1]);
    }
}

/// A 16 x 16 block of the transposed inverse times the decays: its rows are the lane's rows,
/// its columns the window's rows from `first` on.
#[cube]
fn transposed_decayed<E: Float>(block: Fragment, first: u32, window: &CubeWindow) -> Fragment {
    let mut decayed = Fragment::empty();
    #[unroll]
    for i in 0..4usize {
        // The block's rows are columns of the inverse: tokens above.
        let token = window.row + comptime!((i % 2 * 8) as u32);
        let sum = load_number(window.sums + token * 4, 0usize);
        let end = load_word(window.ends + token * 4, 0usize);
        let below = first + window.lane % 4 * 2 + comptime!((i / 2 * 8) as u32);
        let of_below = load_pair(window.sums + below * 4, 0usize);
        let packed = block.extract(i);
        let (sum_0, sum_1) = (of_below.extract(0usize), of_below.extract(1usize));
        let low = unpack_low::<E>(packed) * exp2(f32::reinterpret(sum_0) - sum);
        let high = unpack_high::<E>(packed) * exp2(f32::reinterpret(sum_1) - sum);
        let low = select(token <= below && below < end, low, 0.0f32);
        let high = select(token <= below + 1 && below + 1 < end, high, 0.0f32);
        decayed.insert(i, pack::<E>(low, high));
    }
    decayed
}
