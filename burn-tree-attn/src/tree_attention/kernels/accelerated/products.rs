//! Products of single planes: 16-row blocks of one tile in shared memory with rows of another.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

/// `count` accumulators of zeros.
#[cube]
pub(crate) fn zero_sums(#[comptime] count: usize) -> Array<Accumulator> {
    let mut sums = Array::<Accumulator>::new(count);
    #[unroll]
    for i in 0..count {
        sums[i] = Accumulator::new(0.0f32);
    }
    sums
}

/// Adds to `products` (`blocks` x `right_rows / 8` tiles) the products of `blocks * 16` rows of one
/// tile with `right_rows` rows of another. Addresses: of the first rows, plus the lane's offset
/// by rows and by columns.
#[cube]
pub(crate) fn multiply_blocks<E: Float>(
    products: &mut Array<Accumulator>,
    left_address: u32,
    right_address: u32,
    #[comptime] head_dim: usize,
    #[comptime] blocks: usize,
    #[comptime] right_rows: usize,
) {
    let stride = comptime!(row_stride(head_dim));
    let tiles = comptime!(right_rows / 8);
    #[unroll]
    for k in 0..comptime!(head_dim / 16) {
        let mut left = Array::<Fragment>::new(blocks);
        #[unroll]
        for block in 0..blocks {
            let offset = comptime!(block * 16 * stride + k * 32);
            left[block] = load_block(left_address, offset, false);
        }
        #[unroll]
        for n in 0..comptime!(right_rows / 16) {
            let right = load_block(right_address, comptime!(n * 16 * stride + k * 32), false);
            #[unroll]
            for block in 0..blocks {
                add_product::<E>(
                    products,
                    comptime!(block * tiles + 2 * n),
                    left[block],
                    right,
                );
            }
        }
    }
}

/// Adds to `sums` (`blocks` x `head_dim / 8` tiles) the product of `left` (`blocks` x
/// `right_rows / 16` operands) with `right_rows` rows of a tile, whose first has the address,
/// plus the lane's offset by rows.
#[cube]
pub(crate) fn add_blocks<E: Float>(
    sums: &mut Array<Accumulator>,
    left: &Array<Fragment>,
    right_address: u32,
    #[comptime] head_dim: usize,
    #[comptime] blocks: usize,
    #[comptime] right_rows: usize,
) {
    #[unroll]
    for k in 0..comptime!(right_rows / 16) {
        let apart = comptime!(right_rows / 16);
        add_sixteen_rows::<E>(sums, left, k, apart, right_address, k, head_dim, blocks);
    }
}

/// Adds to `sums` the product of `blocks` operands of `left`, from number `first` on and `apart`
/// from each other, with rows `16 k..` of a tile; otherwise as [`add_blocks`].
#[cube]
pub(crate) fn add_sixteen_rows<E: Float>(
    sums: &mut Array<Accumulator>,
    left: &Array<Fragment>,
    #[comptime] first: usize,
    #[comptime] apart: usize,
    right_address: u32,
    #[comptime] k: usize,
    #[comptime] head_dim: usize,
    #[comptime] blocks: usize,
) {
    let stride = comptime!(row_stride(head_dim));
    let tiles = comptime!(head_dim / 8);
    #[unroll]
    for n in 0..comptime!(head_dim / 16) {
        let right = load_block(right_address, comptime!(k * 16 * stride + n * 32), true);
        #[unroll]
        for block in 0..blocks {
            let of_left = left[comptime!(first + block * apart)];
            add_product::<E>(sums, comptime!(block * tiles + 2 * n), of_left, right);
        }
    }
}

/// Adds a 16 x 16 product to the accumulators `at` and `at + 1`.
#[cube]
fn add_product<E: Float>(
    sums: &mut Array<Accumulator>,
    #[comptime] at: usize,
    left: Fragment,
    right: Fragment,
) {
    sums[at] = multiply_add::<E>(left, right.extract(0usize), right.extract(1usize), sums[at]);
    sums[at + 1] = multiply_add::<E>(
        left,
        right.extract(2usize),
        right.extract(3usize),
        sums[at + 1],
    );
}

/// Sets a number of the accumulator `at` to minus infinity unless it is visible.
#[cube]
pub(crate) fn hide_unless(
    visible: bool,
    scores: &mut Array<Accumulator>,
    #[comptime] at: usize,
    #[comptime] element: usize,
) {
    let mut tile = scores[at];
    let score = select(visible, tile.extract(element), f32::NEG_INFINITY);
    tile.insert(element, score);
    scores[at] = tile;
}
