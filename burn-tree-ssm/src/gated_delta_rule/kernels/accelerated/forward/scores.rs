//! Products of a window's keys with its keys and queries.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::blocks::*;
use super::super::decays::*;
use super::super::words::*;
use super::inverse::*;
use super::local::{LocalConfig, LocalWindow};

/// Writes the plane's rows of the scores to their tile; and of the factors `beta_i k_i k_j`, those
/// below the diagonal blocks in two parts to the tiles of factors, those of the diagonal block
/// transposed to the plane's block.
#[cube]
pub(super) fn multiply_keys<E: Float>(
    window: &LocalWindow,
    numbers: &RowNumbers,
    scale: f32,
    #[comptime] config: LocalConfig,
) {
    let key_dim = comptime!(config.key_dim);
    let stride = comptime!(row_stride(key_dim));
    let lane = window.lane;
    let left = window.plane * comptime!(16 * stride as u32) + lane_offset_by_rows(lane, key_dim);
    let right = window.keys + lane_offset_by_columns(lane, key_dim);
    #[unroll]
    for tile in 0..TILES {
        if tile as u32 <= window.plane {
            // Of keys, then of queries.
            let mut products = Array::<Accumulator>::new(4usize);
            clear(&mut products, 4usize);
            #[unroll]
            for k in 0..comptime!(key_dim / 16) {
                let right = load_block(right, comptime!(16 * tile * stride + 32 * k), false);
                let of_key = load_block(window.keys + left, comptime!(32 * k), false);
                add_product::<E>(&mut products, 0usize, of_key, right);
                let of_query = load_block(window.queries + left, comptime!(32 * k), false);
                add_product::<E>(&mut products, 2usize, of_query, right);
            }
            #[unroll]
            for half in 0..2usize {
                let column = lane % 4 * 2 + comptime!((16 * tile + 8 * half) as u32);
                let columns = columns(numbers.sums, numbers.ends, column);
                let (keys, queries) = (products[half], products[2 + half]);
                store_scores::<E>(queries, &columns, window, numbers, scale, tile, half);
                store_factors(keys, &columns, window, numbers, tile, half);
            }
        }
    }
}

/// Bytes from the lane's place in its first row of a square tile to that in half `half` of tile
/// `tile`, of its second row if `lower` is 1.
const fn place_in_rows(tile: usize, half: usize, lower: usize) -> usize {
    8 * lower * row_stride(ROWS) + 32 * tile + 16 * half
}

/// Writes a lane's scores.
#[cube]
fn store_scores<E: Float>(
    products: Accumulator,
    columns: &Columns,
    window: &LocalWindow,
    numbers: &RowNumbers,
    scale: f32,
    #[comptime] tile: usize,
    #[comptime] half: usize,
) {
    let to = window.scores + window.row * comptime!(row_stride(ROWS) as u32) + window.lane % 4 * 4;
    #[unroll]
    for lower in 0..2usize {
        let row = window.row + comptime!(8 * lower as u32);
        let sum = load_number(numbers.sums + row * 4, 0usize);
        let low = decay_from(columns, 0usize, row, sum) * scale;
        let low = low * products.extract(comptime!(2 * lower));
        let high = decay_from(columns, 1usize, row, sum) * scale;
        let high = high * products.extract(comptime!(2 * lower + 1));
        store_word(
            to,
            comptime!(place_in_rows(tile, half, lower)),
            pack::<E>(low, high),
        );
    }
}

/// Writes a lane's factors.
#[cube]
fn store_factors(
    products: Accumulator,
    columns: &Columns,
    window: &LocalWindow,
    numbers: &RowNumbers,
    #[comptime] tile: usize,
    #[comptime] half: usize,
) {
    let lane = window.lane;
    let to = window.factors + window.row * comptime!(row_stride(ROWS) as u32) + lane % 4 * 4;
    #[unroll]
    for lower in 0..2usize {
        let row = window.row + comptime!(8 * lower as u32);
        let beta = load_number(numbers.betas + row * 4, 0usize);
        let low = beta * products.extract(comptime!(2 * lower));
        let low = select(is_above(columns, 0usize, row), low, 0.0f32);
        let high = beta * products.extract(comptime!(2 * lower + 1));
        let high = select(is_above(columns, 1usize, row), high, 0.0f32);
        if tile as u32 == window.plane {
            // Transposed.
            let to = window.block
                + (lane % 4 * 2 + comptime!(8 * half as u32)) * comptime!(4 * BLOCK_STRIDE as u32)
                + (lane / 4 + comptime!(8 * lower as u32)) * 4;
            store_number(to, 0usize, low);
            store_number(to, comptime!(4 * BLOCK_STRIDE), high);
        } else {
            let at = comptime!(place_in_rows(tile, half, lower));
            let (upper_parts, lower_parts) = split(low, high);
            store_word(to, at, upper_parts);
            store_word(to, comptime!(at + SQUARE), lower_parts);
        }
    }
}
