//! Blocks of the inverse of a unit lower triangular matrix, `I + m° . diag(beta) K K^T`, in f32.
//!
//! It is found from 16 x 16 blocks: those on the diagonal by forward substitution, one column a
//! lane; then, down each column of blocks, `T_ij = -T_ii sum_k A_ik T_kj`, one column a plane.
//! These products are f32 to 16 bits or more: every factor is the sum of two bf16 numbers, and of
//! the four products of such sums the least is left out.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;
use half::bf16;

use super::super::blocks::*;

/// f32 numbers from row to row of a block on the diagonal.
pub(super) const BLOCK_STRIDE: usize = 20;
/// Bytes of a block on the diagonal.
pub(super) const BLOCK: usize = 16 * BLOCK_STRIDE * 4;

/// Inverts `I + L` in place, with `L` a strictly lower triangular 16 x 16 block, both transposed.
#[cube]
pub(super) fn invert_block(block: u32, lane: u32) {
    // Both halves of the plane do the same.
    let column = lane % 16;
    let mut numbers = Array::<f32>::new(16usize);
    #[unroll]
    for i in 0..16usize {
        numbers[i] = select(column == i as u32, 1.0f32, 0.0f32);
    }
    sync_plane();
    #[unroll]
    for i in 0..15usize {
        let number = numbers[i];
        #[unroll]
        for chunk in comptime!((i + 1) / 4)..4usize {
            let below = load_chunk(block, comptime!(4 * BLOCK_STRIDE * i + CHUNK * chunk));
            #[unroll]
            for of_chunk in 0..4usize {
                let k = comptime!(4 * chunk + of_chunk);
                if comptime!(k > i) {
                    numbers[k] = numbers[k] - f32::reinterpret(below.extract(of_chunk)) * number;
                }
            }
        }
    }
    sync_plane();
    #[unroll]
    for chunk in 0..4usize {
        let mut words = Fragment::empty();
        #[unroll]
        for i in 0..4usize {
            words.insert(i, u32::reinterpret(numbers[4 * chunk + i]));
        }
        let to = block + column * comptime!(4 * BLOCK_STRIDE as u32);
        store_chunk(to, comptime!(CHUNK * chunk), words);
    }
    sync_plane();
}

/// Two numbers as sums of two bf16 numbers each: the upper parts, the lower parts.
#[cube]
pub(super) fn split(low: f32, high: f32) -> (u32, u32) {
    let upper = pack::<bf16>(low, high);
    let lower = pack::<bf16>(
        low - unpack_low::<bf16>(upper),
        high - unpack_high::<bf16>(upper),
    );
    (upper, lower)
}

/// Two neighbouring accumulators as the sum of two left operands.
#[cube]
pub(super) fn split_left(first: Accumulator, second: Accumulator) -> (Fragment, Fragment) {
    let upper = pack_left::<bf16>(first, second);
    let (of_first, of_second) = unpack_left::<bf16>(upper);
    (
        upper,
        pack_left::<bf16>(first - of_first, second - of_second),
    )
}

/// Adds the product of a left operand in two parts with a block of the tile of factors, whose rows
/// are the columns of the right operand.
#[cube]
pub(super) fn add_split(
    sum: &mut Array<Accumulator>,
    upper: Fragment,
    lower: Fragment,
    factors: u32,
    #[comptime] offset: usize,
) {
    let right = load_block(factors, offset, false);
    add_product::<bf16>(sum, 0usize, lower, right);
    add_product::<bf16>(
        sum,
        0usize,
        upper,
        load_block(factors, comptime!(offset + SQUARE), false),
    );
    add_product::<bf16>(sum, 0usize, upper, right);
}

/// Writes the transpose of a left operand to a block of a square tile; `to`: the lane's place in
/// it.
#[cube]
pub(super) fn store_transposed(to: u32, operand: Fragment) {
    let stride = comptime!(row_stride(ROWS));
    #[unroll]
    for i in 0..4usize {
        let offset = comptime!(i % 2 * 16 + i / 2 * 8 * stride);
        store_word(to, offset, transpose_block(operand.extract(i)));
    }
}
