//! Products of a window's rows with the state before it and with the gradient of that after it.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::blocks::*;
use super::super::rows::*;
use super::super::words::*;
use super::cube_window::*;

/// The state before a window, and the gradient of that after it, both `[DV, DK]`.
#[derive(CubeType, Clone, Copy)]
pub(super) struct WindowStates {
    pub entry: HeadRows,
    pub exit: HeadRows,
    /// Rows of the gradient; the others are zero.
    pub exit_rows: u32,
}

/// The address of a part of the state before the window, in one of two places in turn. That of the
/// gradient follows.
#[cube]
fn part_address(window: &CubeWindow, #[comptime] part: usize) -> u32 {
    if comptime!(part % 2 == 0) {
        window.grad_u
    } else {
        window.inverse
    }
}

/// Starts copying the `PART` key columns of part `part` of both states.
#[cube]
pub(super) fn copy_part(
    states: &WindowStates,
    window: &CubeWindow,
    #[comptime] part: usize,
    #[comptime] config: WindowConfig,
) {
    let value_dim = comptime!(config.value_dim);
    let columns = comptime!(2 * PART as u32 * part as u32);
    let shared = part_address(window, part);
    let entry = columns_from(&states.entry, columns);
    let entry_rows = comptime!(value_dim as u32);
    copy_head_rows(
        &entry,
        shared,
        window.unit,
        entry_rows,
        value_dim,
        PART,
        UNITS,
    );
    let shared = shared + comptime!(tile_bytes(value_dim, PART) as u32);
    let exit = columns_from(&states.exit, columns);
    copy_head_rows(
        &exit,
        shared,
        window.unit,
        states.exit_rows,
        value_dim,
        PART,
        UNITS,
    );
    commit_copies();
}

/// The part of a unit in the sum of all products of numbers at the same place of part `part` of
/// both states.
#[cube]
pub(super) fn multiply_parts<E: Float>(
    window: &CubeWindow,
    #[comptime] part: usize,
    #[comptime] config: WindowConfig,
) -> f32 {
    let entry_part = part_address(window, part);
    let exit_part = entry_part + comptime!(tile_bytes(config.value_dim, PART) as u32);
    let row_chunks = comptime!((2 * PART / CHUNK) as u32);
    let mut sum = 0.0f32;
    #[unroll]
    for pass in 0..comptime!(config.value_dim * 2 * PART / CHUNK / UNITS) {
        let chunk = window.unit + comptime!((pass * UNITS) as u32);
        let at = (chunk + chunk / row_chunks) * CHUNK as u32;
        let of_entry = load_chunk(entry_part + at, 0usize);
        let of_exit = load_chunk(exit_part + at, 0usize);
        #[unroll]
        for i in 0..4usize {
            let (a, b) = (of_entry.extract(i), of_exit.extract(i));
            sum += unpack_low::<E>(a) * unpack_low::<E>(b);
            sum += unpack_high::<E>(a) * unpack_high::<E>(b);
        }
    }
    sum
}

/// Sums of the lane's two rows over their products with the states.
#[derive(CubeType)]
pub(super) struct StateProducts {
    /// `<scale e^G H dO, Q>`
    pub with_queries: Array<f32>,
    /// `<e^G H X, K>`
    pub with_keys: Array<f32>,
    /// `<decay to the last token dS U, K>`
    pub with_exit: Array<f32>,
}

/// Sums without terms.
#[cube]
pub(super) fn zero_products() -> StateProducts {
    StateProducts {
        with_queries: zero_rows(),
        with_keys: zero_rows(),
        with_exit: zero_rows(),
    }
}

/// Adds to the plane's sums what the states give in the key columns of one part: to those of the
/// queries `diag(e^G scale) dO H^T`, to those of the keys `diag(decay to the last token) U dS^T -
/// diag(beta e^G) X H^T`; and to `products` the products of these rows with queries and keys. `x`:
/// the plane's rows of `X`.
#[cube]
pub(super) fn add_state_products<E: Float>(
    sums: &mut KeySums,
    products: &mut StateProducts,
    x: &Array<Fragment>,
    window: &CubeWindow,
    lane_rows: &LaneRows,
    scale: f32,
    #[comptime] part: usize,
    #[comptime] config: WindowConfig,
) {
    let (key_dim, value_dim) = comptime!((config.key_dim, config.value_dim));
    let key_stride = comptime!(row_stride(key_dim) as u32);
    let value_stride = comptime!(row_stride(value_dim) as u32);
    let value_by_rows = lane_offset_by_rows(window.lane, value_dim);
    let entry_part = part_address(window, part) + lane_offset_by_rows(window.lane, PART);
    let exit_part = entry_part + comptime!(tile_bytes(value_dim, PART) as u32);
    let decay = exp2(lane_rows.sum);
    let decay_8 = exp2(lane_rows.sum_8);
    let exit_decay = load_number(window.to_last + window.row * 4, 0usize);
    let exit_decay_8 = load_number(window.to_last + window.row * 4, 32usize);
    #[unroll]
    for n in 0..comptime!(PART / 16) {
        let mut tiles = Array::<Accumulator>::new(6usize);
        clear(&mut tiles, 6usize);
        #[unroll]
        for k in 0..comptime!(value_dim / 16) {
            let of_part = comptime!(k * 16 * row_stride(PART) + n * 32);
            let of_row = comptime!(k * 32);
            let rows = window.plane_row * value_stride + value_by_rows;
            let of_entry = load_block(entry_part, of_part, true);
            let of_exit = load_block(exit_part, of_part, true);
            let outputs = load_block(window.grad_output + rows, of_row, false);
            let us = load_block(window.u + rows, of_row, false);
            add_product::<E>(&mut tiles, 0usize, outputs, of_entry);
            add_product::<E>(&mut tiles, 2usize, x[k], of_entry);
            add_product::<E>(&mut tiles, 4usize, us, of_exit);
        }
        #[unroll]
        for of_pair in 0..2usize {
            let at = comptime!(part * PART / 8 + 2 * n + of_pair);
            let words = window.row * key_stride + window.lane % 4 * 4;
            let mut query_sum = sums.query[at];
            let mut key_sum = sums.key[at];
            let of_output = tiles[of_pair];
            let of_x = tiles[comptime!(2 + of_pair)];
            let of_u = tiles[comptime!(4 + of_pair)];
            #[unroll]
            for half in 0..2usize {
                let offset = comptime!(16 * at + 8 * half * row_stride(key_dim));
                let queries = load_word(window.query + words, offset);
                let keys = load_word(window.key + words, offset);
                let (decay, exit_decay, beta) = if comptime!(half == 0) {
                    (decay, exit_decay, lane_rows.beta)
                } else {
                    (decay_8, exit_decay_8, lane_rows.beta_8)
                };
                #[unroll]
                for of in 0..2usize {
                    let i = comptime!(2 * half + of);
                    let (query, key) = if comptime!(of == 0) {
                        (unpack_low::<E>(queries), unpack_low::<E>(keys))
                    } else {
                        (unpack_high::<E>(queries), unpack_high::<E>(keys))
                    };
                    let output = of_output.extract(i) * (decay * scale);
                    let x = of_x.extract(i) * decay;
                    let u = of_u.extract(i) * exit_decay;
                    products.with_queries[half] += output * query;
                    products.with_keys[half] += x * key;
                    products.with_exit[half] += u * key;
                    query_sum.insert(i, query_sum.extract(i) + output);
                    key_sum.insert(i, key_sum.extract(i) + (u - x * beta));
                }
            }
            sums.query[at] = query_sum;
            sums.key[at] = key_sum;
        }
    }
}
