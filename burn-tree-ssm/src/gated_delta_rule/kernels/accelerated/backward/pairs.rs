//! Sums over pairs of rows of a window.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::blocks::*;
use super::super::decays::*;
use super::super::words::*;
use super::cube_window::*;

/// Adds to the sums of the plane's rows what pairs of its rows with rows above give: `dP K` to
/// those of the queries, `N K` to those of the keys, and to `below` the sums over columns of
/// `E . K K^T . S`. `N` and `dP` go to their tiles, and sums of `Z` over pairs that cross an edge
/// to the plane's column sums. `x`: the plane's rows of `X`.
#[cube]
pub(super) fn add_pairs<E: Float>(
    sums: &mut KeySums,
    below: &mut Array<f32>,
    x: &Array<Fragment>,
    window: &CubeWindow,
    lane_rows: &LaneRows,
    scale: f32,
    #[comptime] config: WindowConfig,
) {
    let (key_dim, value_dim) = comptime!((config.key_dim, config.value_dim));
    let key_stride = comptime!(row_stride(key_dim) as u32);
    let value_stride = comptime!(row_stride(value_dim) as u32);
    let square_stride = comptime!(row_stride(ROWS) as u32);
    let by_rows = lane_offset_by_rows(window.lane, key_dim);
    let by_columns = lane_offset_by_columns(window.lane, key_dim);
    let value_by_rows = lane_offset_by_rows(window.lane, value_dim);
    let value_by_columns = lane_offset_by_columns(window.lane, value_dim);
    // Sums of Z over the columns before.
    let mut before = 0.0f32;
    let mut before_8 = 0.0f32;
    for column_tile in 0..window.plane + 1 {
        let right = column_tile * 16;
        let key_rows = window.key + right * key_stride;
        let of_plane = window.plane_row * key_stride + by_rows;
        let with_key_rows = multiply_both::<E>(
            window.key + of_plane,
            window.query + of_plane,
            key_rows + by_columns,
            key_dim,
        );
        let with_u_rows = multiply_both_operands::<E>(
            x,
            window.grad_output + window.plane_row * value_stride + value_by_rows,
            window.u + right * value_stride + value_by_columns,
            value_dim,
        );

        let mut of_keys = Array::<Accumulator>::new(2usize);
        let mut of_products = Array::<Accumulator>::new(2usize);
        // Z of the lane's rows and four columns.
        let mut z = Array::<f32>::new(8usize);
        #[unroll]
        for half in 0..2usize {
            let first = right + window.lane % 4 * 2 + comptime!(8 * half as u32);
            let columns = columns(window.sums, window.ends, first);
            let (keys, queries) = (with_key_rows[half], with_key_rows[half + 2]);
            let (of_x, outputs) = (with_u_rows[half], with_u_rows[half + 2]);
            let mut n = Accumulator::empty();
            let mut p = Accumulator::empty();
            #[unroll]
            for i in 0..4usize {
                let of = comptime!(i % 2);
                let (of_row, of_sum, beta) = if comptime!(i < 2) {
                    (window.row, lane_rows.sum, lane_rows.beta)
                } else {
                    (window.row + 8, lane_rows.sum_8, lane_rows.beta_8)
                };
                let decay = decay_from(&columns, of, of_row, of_sum);
                let strict = select(first + comptime!(of as u32) < of_row, decay, 0.0f32);
                let of_s = strict * of_x.extract(i);
                let of_n = of_s * (-beta);
                let of_p = decay * scale * outputs.extract(i);
                let of_pair = of_s * keys.extract(i);
                below[comptime!(i / 2)] += of_pair;
                z[comptime!(i / 2 * 4 + half * 2 + of)] =
                    of_n * keys.extract(i) + of_p * queries.extract(i);
                n.insert(i, of_n);
                p.insert(i, of_p);
            }
            of_keys[half] = n;
            of_products[half] = p;
        }
        let n = pack_left::<E>(of_keys[0], of_keys[1]);
        let p = pack_left::<E>(of_products[0], of_products[1]);
        let at = window.row * square_stride + column_tile * 32 + window.lane % 4 * 4;
        #[unroll]
        for i in 0..4usize {
            let offset = comptime!(i % 2 * 8 * row_stride(ROWS) + i / 2 * 16);
            store_word(window.inverse + at, offset, n.extract(i));
            store_word(window.grad_product + at, offset, p.extract(i));
        }
        #[unroll]
        for tile in 0..comptime!(key_dim / 16) {
            let right = load_block(key_rows + by_rows, comptime!(tile * 32), true);
            add_product::<E>(&mut sums.query, comptime!(2 * tile), p, right);
            add_product::<E>(&mut sums.key, comptime!(2 * tile), n, right);
        }

        before = add_crossings(&z, 0usize, before, window.row, right, window);
        before_8 = add_crossings(&z, 4usize, before_8, window.row + 8, right, window);
    }
}

/// Adds to the sums of the plane's rows of keys what pairs with rows below give: `dP^T Q + N^T K`.
#[cube]
pub(super) fn add_pairs_below<E: Float>(
    of_key: &mut Array<Accumulator>,
    window: &CubeWindow,
    #[comptime] config: WindowConfig,
) {
    let key_dim = comptime!(config.key_dim);
    let key_stride = comptime!(row_stride(key_dim) as u32);
    let square_stride = comptime!(row_stride(ROWS) as u32);
    let by_rows = lane_offset_by_rows(window.lane, key_dim);
    let square_by_columns = lane_offset_by_columns(window.lane, ROWS);
    for row_tile in window.plane..window.tiles {
        let at = row_tile * 16 * square_stride + window.plane * 32 + square_by_columns;
        let n = load_block(window.inverse + at, 0usize, true);
        let p = load_block(window.grad_product + at, 0usize, true);
        let rows_of = row_tile * 16 * key_stride + by_rows;
        add_rows::<E>(of_key, p, window.query + rows_of, key_dim);
        add_rows::<E>(of_key, n, window.key + rows_of, key_dim);
    }
}

/// The products (two tiles each) of 16 rows of two tiles with 16 rows of a third; addresses of the
/// first rows, plus the lane's offset by rows, by rows and by columns.
#[cube]
fn multiply_both<E: Float>(
    first: u32,
    second: u32,
    right: u32,
    #[comptime] dim: usize,
) -> Array<Accumulator> {
    let mut products = Array::<Accumulator>::new(4usize);
    clear(&mut products, 4usize);
    #[unroll]
    for k in 0..comptime!(dim / 16) {
        let of_right = load_block(right, comptime!(k * 32), false);
        let of_first = load_block(first, comptime!(k * 32), false);
        let of_second = load_block(second, comptime!(k * 32), false);
        add_product::<E>(&mut products, 0usize, of_first, of_right);
        add_product::<E>(&mut products, 2usize, of_second, of_right);
    }
    products
}

/// As [`multiply_both`], the first 16 rows being held as left operands.
#[cube]
fn multiply_both_operands<E: Float>(
    first: &Array<Fragment>,
    second: u32,
    right: u32,
    #[comptime] dim: usize,
) -> Array<Accumulator> {
    let mut products = Array::<Accumulator>::new(4usize);
    clear(&mut products, 4usize);
    #[unroll]
    for k in 0..comptime!(dim / 16) {
        let of_right = load_block(right, comptime!(k * 32), false);
        let of_second = load_block(second, comptime!(k * 32), false);
        add_product::<E>(&mut products, 0usize, first[k], of_right);
        add_product::<E>(&mut products, 2usize, of_second, of_right);
    }
    products
}

/// Adds to the plane's column sums, for each of 16 columns from `first` on whose token is that of
/// `row` or above it, the sum of the row's `z` over the columns before; `before` is that sum before
/// the first column. A lane has four of the row's numbers from `at` on, of the columns that an
/// accumulator pair gives it. Returns the sum after the last column.
#[cube]
fn add_crossings(
    z: &Array<f32>,
    #[comptime] at: usize,
    before: f32,
    row: u32,
    first: u32,
    window: &CubeWindow,
) -> f32 {
    let column_sums = window.column_sums + window.plane * comptime!(4 * ROWS as u32);
    let of_quad = window.lane % 4;
    let mut sum = before;
    #[unroll]
    for half in 0..2usize {
        let low = z[comptime!(at + 2 * half)];
        let high = z[comptime!(at + 2 * half + 1)];
        // Sums over the lanes before of the quad, and over all of it.
        let own = low + high;
        let neighbour = shuffle_xor(own, 1u32);
        let pair = own + neighbour;
        let other_pair = shuffle_xor(pair, 2u32);
        let start = sum
            + select(of_quad % 2 == 1, neighbour, 0.0f32)
            + select(of_quad >= 2, other_pair, 0.0f32);
        let column = first + of_quad * 2 + comptime!(8 * half as u32);
        let of_ends = load_pair(window.ends + column * 4, 0usize);
        #[unroll]
        for of in 0..2usize {
            let column = column + comptime!(of as u32);
            let above = column <= row && row < of_ends.extract(of);
            let crossing = if comptime!(of == 0) {
                start
            } else {
                start + low
            };
            let mut total = select(above, crossing, 0.0f32);
            #[unroll]
            for step in 2..5u32 {
                total += shuffle_xor(total, comptime!(1u32 << step));
            }
            if window.lane < 4 {
                let to = column_sums + column * 4;
                store_number(to, 0usize, load_number(to, 0usize) + total);
            }
        }
        sum += pair + other_pair;
    }
    sum
}
