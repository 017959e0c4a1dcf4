//! The shape of windows, and products of their rows.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

/// Most rows of a window.
pub(crate) const ROWS: usize = 64;
/// 16-row tiles of a window.
pub(crate) const TILES: usize = ROWS / 16;
/// Bytes of a 16-bit tile of a window's rows and columns.
pub(crate) const SQUARE: usize = tile_bytes(ROWS, ROWS);

/// Compile-time shape of the kernels on single windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowConfig {
    /// Numbers of a key, a multiple of 64.
    pub key_dim: usize,
    /// Numbers of a value, a multiple of 64.
    pub value_dim: usize,
}

/// An 8 x 8 block of 16-bit numbers, of which every lane holds a pair of a row, transposed.
#[cube]
pub(crate) fn transpose_block(pair: u32) -> u32 {
    let transposed: u32;
    gpu_asm!(
        "movmatrix.sync.aligned.m8n8.trans.b16 {transposed}, {pair};",
        pair = in(_) read::<u32>(pair), transposed = out(_) transposed, options(nomem),
    );
    transposed
}

/// The negative of all numbers of an operand.
#[cube]
pub(crate) fn negate(operand: Fragment) -> Fragment {
    let mut negative = Fragment::empty();
    #[unroll]
    for i in 0..4usize {
        negative.insert(i, operand.extract(i) ^ 0x8000_8000u32);
    }
    negative
}

/// The eight numbers of a left operand, as two neighbouring accumulators.
#[cube]
pub(crate) fn unpack_left<E: Float>(operand: Fragment) -> (Accumulator, Accumulator) {
    let mut first = Accumulator::empty();
    let mut second = Accumulator::empty();
    #[unroll]
    for i in 0..2usize {
        let (of_first, of_second) = (operand.extract(i), operand.extract(comptime!(i + 2)));
        first.insert(comptime!(2 * i), unpack_low::<E>(of_first));
        first.insert(comptime!(2 * i + 1), unpack_high::<E>(of_first));
        second.insert(comptime!(2 * i), unpack_low::<E>(of_second));
        second.insert(comptime!(2 * i + 1), unpack_high::<E>(of_second));
    }
    (first, second)
}

/// Adds a 16 x 16 product to the accumulators `at` and `at + 1`.
#[cube]
pub(crate) fn add_product<E: Float>(
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

/// Sets all sums to zero.
#[cube]
pub(crate) fn clear(sums: &mut Array<Accumulator>, #[comptime] tiles: usize) {
    #[unroll]
    for i in 0..tiles {
        sums[i] = Accumulator::new(0.0f32);
    }
}

/// Adds to `sums` (16 x `dim`) the product of one left operand (16 x 16) with 16 rows of a tile of
/// `dim` columns, whose first has the address, plus the lane's offset by rows.
#[cube]
pub(crate) fn add_rows<E: Float>(
    sums: &mut Array<Accumulator>,
    left: Fragment,
    rows: u32,
    #[comptime] dim: usize,
) {
    #[unroll]
    for n in 0..comptime!(dim / 16) {
        let right = load_block(rows, comptime!(n * 32), true);
        add_product::<E>(sums, comptime!(2 * n), left, right);
    }
}

/// The product (16 x 16) of 16 rows of a tile with 16 rows of another; addresses of the first rows,
/// plus the lane's offset by rows and by columns.
#[cube]
pub(crate) fn multiply_rows<E: Float>(
    left: u32,
    right: u32,
    #[comptime] dim: usize,
) -> (Accumulator, Accumulator) {
    // Two sums per tile, for more independent products.
    let mut sums = Array::<Accumulator>::new(4usize);
    clear(&mut sums, 4usize);
    #[unroll]
    for k in 0..comptime!(dim / 16) {
        let of_left = load_block(left, comptime!(k * 32), false);
        let of_right = load_block(right, comptime!(k * 32), false);
        add_product::<E>(&mut sums, comptime!(k % 2 * 2), of_left, of_right);
    }
    (sums[0] + sums[2], sums[1] + sums[3])
}

/// Writes a plane's 16 rows of sums, rounded, to rows of a tile that the plane alone uses.
#[cube]
pub(crate) fn stage_rows<E: Float>(
    sums: &Array<Accumulator>,
    rows: u32,
    lane: u32,
    #[comptime] dim: usize,
) {
    let stride = comptime!(row_stride(dim));
    let address = rows + lane / 4 * comptime!(stride as u32) + lane % 4 * 4;
    sync_plane();
    #[unroll]
    for half in 0..2usize {
        #[unroll]
        for n in 0..comptime!(dim / 8) {
            let sum = sums[n];
            let word = pack::<E>(
                sum.extract(comptime!(2 * half)),
                sum.extract(comptime!(2 * half + 1)),
            );
            store_word(address, comptime!(half * 8 * stride + n * 16), word);
        }
    }
    sync_plane();
}
