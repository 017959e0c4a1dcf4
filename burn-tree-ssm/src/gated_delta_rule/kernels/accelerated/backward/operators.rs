//! Products within a window: `P`, and with it and the saved inverse `w`, `u` and the gradients that
//! updates get from outputs.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::blocks::*;
use super::super::decays::*;
use super::super::rows::*;
use super::super::words::*;
use super::local::{LocalResults, LocalWindow};

/// `P = E . scale Q K^T`, on and below the diagonal, of the plane's rows.
#[cube]
pub(super) fn multiply_queries<E: Float>(
    window: &LocalWindow,
    numbers: &RowNumbers,
    scale: f32,
    #[comptime] config: WindowConfig,
) {
    let key_dim = comptime!(config.key_dim);
    let key_stride = comptime!(row_stride(key_dim) as u32);
    let (lane, row) = (window.lane, window.row);
    let queries = window.query + window.plane_row * key_stride + lane_offset_by_rows(lane, key_dim);
    let keys = window.key + lane_offset_by_columns(lane, key_dim);
    let sum = load_number(numbers.sums + row * 4, 0usize);
    let sum_8 = load_number(numbers.sums + row * 4, 32usize);
    for column_tile in 0..window.plane + 1 {
        let keys = keys + column_tile * comptime!(16 * key_stride);
        let (first, second) = multiply_rows::<E>(queries, keys, key_dim);
        let to = window.product
            + row * comptime!(row_stride(ROWS) as u32)
            + column_tile * 32
            + lane % 4 * 4;
        #[unroll]
        for half in 0..2usize {
            let product = if comptime!(half == 0) { first } else { second };
            let column = column_tile * 16 + lane % 4 * 2 + comptime!(8 * half as u32);
            let columns = columns(numbers.sums, numbers.ends, column);
            let low = product.extract(0usize) * scale * decay_from(&columns, 0usize, row, sum);
            let high = product.extract(1usize) * scale * decay_from(&columns, 1usize, row, sum);
            store_word(to, comptime!(16 * half), pack::<E>(low, high));
            let row = row + 8;
            let low = product.extract(2usize) * scale * decay_from(&columns, 0usize, row, sum_8);
            let high = product.extract(3usize) * scale * decay_from(&columns, 1usize, row, sum_8);
            let below = comptime!(16 * half + 8 * row_stride(ROWS));
            store_word(to, below, pack::<E>(low, high));
        }
    }
}

/// Writes the plane's rows of `w` and `u`.
#[cube]
pub(super) fn write_operators<E: Float>(
    results: &mut LocalResults,
    window: &LocalWindow,
    numbers: &RowNumbers,
    of_head: &HeadWindow,
    #[comptime] config: WindowConfig,
) {
    let (key_dim, value_dim) = comptime!((config.key_dim, config.value_dim));
    let lane = window.lane;
    let sum = load_number(numbers.sums + window.row * 4, 0usize);
    let sum_8 = load_number(numbers.sums + window.row * 4, 32usize);
    let mut of_w = Array::<Accumulator>::new(comptime!(key_dim / 8));
    let mut of_u = Array::<Accumulator>::new(comptime!(value_dim / 8));
    clear(&mut of_w, comptime!(key_dim / 8));
    clear(&mut of_u, comptime!(value_dim / 8));
    let inverse_rows = window.inverse
        + window.plane_row * comptime!(row_stride(ROWS) as u32)
        + lane_offset_by_rows(lane, ROWS);
    let keys = window.key + lane_offset_by_rows(lane, key_dim);
    let values = window.value + lane_offset_by_rows(lane, value_dim);
    for column_tile in 0..window.plane + 1 {
        let packed = load_block(inverse_rows + column_tile * 32, 0usize, false);
        let (plain, decayed) =
            scale_inverse::<E>(packed, column_tile * 16, window, numbers, sum, sum_8);
        let right = column_tile * 16;
        let keys = keys + right * comptime!(row_stride(key_dim) as u32);
        add_rows::<E>(&mut of_w, plain, keys, key_dim);
        let values = values + right * comptime!(row_stride(value_dim) as u32);
        add_rows::<E>(&mut of_u, decayed, values, value_dim);
    }
    let (decay, decay_8) = (exp2(sum), exp2(sum_8));
    #[unroll]
    for n in 0..comptime!(key_dim / 8) {
        let mut tile = of_w[n];
        tile.insert(0usize, tile.extract(0usize) * decay);
        tile.insert(1usize, tile.extract(1usize) * decay);
        tile.insert(2usize, tile.extract(2usize) * decay_8);
        tile.insert(3usize, tile.extract(3usize) * decay_8);
        of_w[n] = tile;
    }

    let w = output_address(&mut results.w);
    write_rows::<E>(&of_w, w, window, of_head, key_dim, config);
    let u = output_address(&mut results.u);
    write_rows::<E>(&of_u, u, window, of_head, value_dim, config);
}

/// A 16 x 16 block of the inverse, of the lane's rows and columns from `first` on, as two left
/// operands: times the columns' betas, and that times the decays, too.
#[cube]
fn scale_inverse<E: Float>(
    block: Fragment,
    first: u32,
    window: &LocalWindow,
    numbers: &RowNumbers,
    sum: f32,
    sum_8: f32,
) -> (Fragment, Fragment) {
    let (of_first, of_second) = unpack_left::<E>(block);
    let mut plain = Array::<Accumulator>::new(2usize);
    let mut decayed = Array::<Accumulator>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        let entries = if comptime!(half == 0) {
            of_first
        } else {
            of_second
        };
        let column = first + window.lane % 4 * 2 + comptime!(8 * half as u32);
        let columns = columns(numbers.sums, numbers.ends, column);
        let of_columns = load_pair(numbers.betas + column * 4, 0usize);
        let mut of_plain = Accumulator::empty();
        let mut of_decayed = Accumulator::empty();
        #[unroll]
        for i in 0..4usize {
            let of = comptime!(i % 2);
            let beta = f32::reinterpret(of_columns.extract(of));
            let (of_row, of_sum) = if comptime!(i < 2) {
                (window.row, sum)
            } else {
                (window.row + 8, sum_8)
            };
            // Columns past the window's length may hold anything.
            let above = is_above(&columns, of, of_row);
            let number = select(above, entries.extract(i) * beta, 0.0f32);
            let decay = decay_from(&columns, of, of_row, of_sum);
            of_plain.insert(i, number);
            of_decayed.insert(i, number * decay);
        }
        plain[half] = of_plain;
        decayed[half] = of_decayed;
    }
    (
        pack_left::<E>(plain[0], plain[1]),
        pack_left::<E>(decayed[0], decayed[1]),
    )
}

/// Writes the plane's rows of `grad_u`.
#[cube]
pub(super) fn write_output_gradients<E: Float>(
    results: &mut LocalResults,
    window: &LocalWindow,
    of_head: &HeadWindow,
    #[comptime] config: WindowConfig,
) {
    let value_dim = comptime!(config.value_dim);
    let mut sums = Array::<Accumulator>::new(comptime!(value_dim / 8));
    clear(&mut sums, comptime!(value_dim / 8));
    let products = window.product + window.plane * 32 + lane_offset_by_columns(window.lane, ROWS);
    let gradients = window.grad_output + lane_offset_by_rows(window.lane, value_dim);
    for row_tile in window.plane..window.tiles {
        let at = row_tile * 16 * comptime!(row_stride(ROWS) as u32);
        let left = load_block(products + at, 0usize, true);
        let rows = gradients + row_tile * comptime!(16 * row_stride(value_dim) as u32);
        add_rows::<E>(&mut sums, left, rows, value_dim);
    }
    let grad_u = output_address(&mut results.grad_u);
    write_rows::<E>(&sums, grad_u, window, of_head, value_dim, config);
}

/// Writes the plane's rows to a tensor. No plane needs queries any more: each stages its rows
/// there.
#[cube]
fn write_rows<E: Float>(
    sums: &Array<Accumulator>,
    address: u64,
    window: &LocalWindow,
    of_head: &HeadWindow,
    #[comptime] dim: usize,
    #[comptime] config: WindowConfig,
) {
    let staged = window.query + window.plane_row * comptime!(row_stride(config.wider()) as u32);
    let first = of_head.start + window.plane_row;
    let rows = head_rows(address, first, of_head.value_heads, of_head.head, dim);
    store_sums::<E>(
        sums,
        staged,
        &rows,
        window.lane,
        of_head.length - window.plane_row,
        dim,
    );
}
