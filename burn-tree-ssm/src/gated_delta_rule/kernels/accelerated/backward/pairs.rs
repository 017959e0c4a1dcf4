//! Blocks of the kernel of a window's gradients: parts of states, and sums over pairs of rows.

use cubecl::prelude::*;
use tree_training_cube::matrix::*;

use super::super::blocks::*;

/// Units of a cube.
pub(crate) const UNITS: usize = TILES * PLANE;
/// Key columns of a part of the states, of which two are in shared memory at a time.
pub(super) const PART: usize = 32;

/// Starts copying `PART` key columns of the state before a window, and behind them those of the first
/// `exit_rows` rows of the gradient of the state after it; the others become zero.
#[cube]
pub(super) fn copy_part(
    entry: u64,
    exit: u64,
    exit_rows: u32,
    shared: u32,
    unit: u32,
    #[comptime] config: WindowConfig,
) {
    let (key_dim, value_dim) = comptime!((config.key_dim, config.value_dim));
    let row_bytes = u64::cast_from(comptime!(2 * key_dim as u32));
    let entry_rows = comptime!(value_dim as u32);
    copy_spread_rows(
        entry, row_bytes, shared, unit, entry_rows, value_dim, PART, UNITS,
    );
    let shared = shared + comptime!(tile_bytes(value_dim, PART) as u32);
    copy_spread_rows(
        exit, row_bytes, shared, unit, exit_rows, value_dim, PART, UNITS,
    );
    commit_copies();
}

/// The part of a unit in the sum of all products of numbers at the same place of two parts.
#[cube]
pub(super) fn multiply_parts<E: Float>(
    entry_part: u32,
    exit_part: u32,
    unit: u32,
    #[comptime] config: WindowConfig,
) -> f32 {
    let row_chunks = comptime!((2 * PART / CHUNK) as u32);
    let mut sum = 0.0f32;
    #[unroll]
    for pass in 0..comptime!(config.value_dim * 2 * PART / CHUNK / UNITS) {
        let chunk = unit + comptime!((pass * UNITS) as u32);
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

/// The products (two tiles each) of 16 rows of two tiles with 16 rows of a third; addresses of the
/// first rows, plus the lane's offset by rows, by rows and by columns.
#[cube]
pub(super) fn multiply_both<E: Float>(
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
pub(super) fn multiply_both_operands<E: Float>(
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

/// A 16 x 16 block of the transposed inverse times the decays: its rows are the lane's `row` and the
/// one eight further, its columns the window's rows from `first` on.
#[cube]
pub(super) fn transposed_decayed<E: Float>(
    block: Fragment,
    first: u32,
    row: u32,
    lane: u32,
    sums: u32,
    ends: u32,
) -> Fragment {
    let mut decayed = Fragment::empty();
    #[unroll]
    for i in 0..4usize {
        // The block's rows are columns of the inverse: tokens above.
        let token = row + comptime!((i % 2 * 8) as u32);
        let sum = load_number(sums + token * 4, 0usize);
        let end = load_word(ends + token * 4, 0usize);
        let below = first + lane % 4 * 2 + comptime!((i / 2 * 8) as u32);
        let of_below = load_pair(sums + below * 4, 0usize);
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

/// Adds to `column_sums`, for each of 16 columns from `first` on whose token is that of `row` or above
/// it, the sum of the row's `z` over the columns before; `before` is that sum before the first
/// column. A lane has four of the row's numbers from `at` on, of the columns that an accumulator
/// pair gives it. Returns the sum after the last column.
#[cube]
pub(super) fn add_crossings(
    z: &Array<f32>,
    #[comptime] at: usize,
    before: f32,
    row: u32,
    first: u32,
    lane: u32,
    ends: u32,
    column_sums: u32,
) -> f32 {
    let of_quad = lane % 4;
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
        let of_ends = load_pair(ends + column * 4, 0usize);
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
            if lane < 4 {
                let to = column_sums + column * 4;
                store_number(to, 0usize, load_number(to, 0usize) + total);
            }
        }
        sum += pair + other_pair;
    }
    sum
}
