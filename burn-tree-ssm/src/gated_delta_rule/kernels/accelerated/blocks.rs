//! What these kernels are made of besides the blocks of all tensor-core kernels: rows
//! of one head out of token-major tensors, decays within a window, and products.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

/// Most rows of a window.
pub(crate) const ROWS: usize = 64;
/// 16-row tiles of a window.
pub(crate) const TILES: usize = ROWS / 16;

/// Compile-time shape of the kernels on single windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowConfig {
    /// Numbers of a key, a multiple of 64.
    pub key_dim: usize,
    /// Numbers of a value, a multiple of 64.
    pub value_dim: usize,
}

// Memory

/// The 64-bit address of the start of a tensor in global memory that is written to.
#[cube]
pub(crate) fn output_address<T: CubePrimitive>(tensor: &mut [T]) -> u64 {
    let pointer = tensor.as_mut_ptr();
    let address: u64;
    gpu_asm!(
        "cvta.to.global.u64 {address}, {pointer};",
        pointer = in(_) pointer, address = out(_) address, options(nomem),
    );
    address
}

/// Bytes from the start of a token-major tensor (`[R, heads, dim]` of 16-bit numbers) to a row of a
/// head.
#[cube]
pub(crate) fn row_offset(row: u32, heads: u32, head: u32, #[comptime] dim: usize) -> u64 {
    (u64::cast_from(row) * u64::cast_from(heads) + u64::cast_from(head)) * comptime!(2 * dim as u64)
}

/// Bytes from row to row of one head of a token-major tensor.
#[cube]
pub(crate) fn row_bytes(heads: u32, #[comptime] dim: usize) -> u64 {
    u64::cast_from(heads * comptime!(2 * dim as u32))
}

/// Starts copying `rows` rows of `dim` 16-bit numbers, `row_bytes` apart in global memory, into the
/// tile at `shared`; rows from `valid_rows` on become zero. `unit` is one of `units` units.
#[cube]
pub(crate) fn copy_spread_rows(
    global: u64,
    row_bytes: u64,
    shared: u32,
    unit: u32,
    valid_rows: u32,
    #[comptime] rows: usize,
    #[comptime] dim: usize,
    #[comptime] units: usize,
) {
    let row_chunks = comptime!(2 * dim / CHUNK);
    let rows_of_pass = comptime!(units / row_chunks);
    let row = unit / row_chunks as u32;
    let chunk = unit % row_chunks as u32 * CHUNK as u32;
    let to = shared + row * comptime!(row_stride(dim) as u32) + chunk;
    let mut from = global + u64::cast_from(row) * row_bytes + u64::cast_from(chunk);
    let advance = row_bytes * comptime!(rows_of_pass as u64);
    #[unroll]
    for pass in 0..comptime!(rows / rows_of_pass) {
        let first = comptime!(pass * rows_of_pass);
        copy_chunk_or_zero(
            from,
            0usize,
            to,
            comptime!(first * row_stride(dim)),
            row + comptime!(first as u32) < valid_rows,
        );
        from += advance;
    }
}

/// Writes the first `valid` of `rows` rows of a tile in shared memory to rows `row_bytes` apart in
/// global memory, by one plane.
#[cube]
pub(crate) fn store_spread_rows(
    shared: u32,
    global: u64,
    row_bytes: u64,
    lane: u32,
    valid: u32,
    #[comptime] rows: usize,
    #[comptime] dim: usize,
) {
    let row_chunks = comptime!((2 * dim / CHUNK) as u32);
    #[unroll]
    for pass in 0..comptime!(rows * 2 * dim / CHUNK / PLANE) {
        let chunk = lane + comptime!((pass * PLANE) as u32);
        let row = chunk / row_chunks;
        if row < valid {
            // 16 bytes of padding per row.
            let from = shared + (chunk + row) * CHUNK as u32;
            let offset = u64::cast_from(chunk % row_chunks * CHUNK as u32);
            let to = global + u64::cast_from(row) * row_bytes + offset;
            store_chunk_global(to, load_chunk(from, 0usize));
        }
    }
}

/// Reads an f32 number of shared memory.
#[cube]
pub(crate) fn load_number(address: u32, #[comptime] offset: usize) -> f32 {
    let number: f32;
    gpu_asm!(
        "ld.shared.f32 {number}, [{address}+{offset}];",
        number = out(_) number, address = in(_) read::<u32>(address), options(readonly),
    );
    number
}

/// Writes an f32 number of shared memory.
#[cube]
pub(crate) fn store_number(address: u32, #[comptime] offset: usize, number: f32) {
    gpu_asm!(
        "st.shared.f32 [{address}+{offset}], {number};",
        address = in(_) read::<u32>(address), number = in(_) read::<f32>(number),
    );
}

/// Reads a word of shared memory.
#[cube]
pub(crate) fn load_word(address: u32, #[comptime] offset: usize) -> u32 {
    let word: u32;
    gpu_asm!(
        "ld.shared.b32 {word}, [{address}+{offset}];",
        word = out(_) word, address = in(_) read::<u32>(address), options(readonly),
    );
    word
}

/// Reads a word of global memory that this launch does not write.
#[cube]
pub(crate) fn load_word_global(address: u64, #[comptime] offset: usize) -> u32 {
    let word: u32;
    gpu_asm!(
        "ld.global.nc.b32 {word}, [{address}+{offset}];",
        word = out(_) word, address = in(_) read::<u64>(address), options(readonly),
    );
    word
}

/// Writes a word of global memory.
#[cube]
pub(crate) fn store_word_global(address: u64, #[comptime] offset: usize, word: u32) {
    gpu_asm!(
        "st.global.b32 [{address}+{offset}], {word};",
        address = in(_) read::<u64>(address), word = in(_) read::<u32>(word),
    );
}

// Fragments

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

// Decays

/// Two neighbouring columns of a window's decays.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Columns {
    first: u32,
    sums: Vector<u32, Const<2>>,
    ends: Vector<u32, Const<2>>,
}

/// The columns `first` and `first + 1`; addresses of the window's path sums of log decays (to base
/// 2) and of the ends of its rows' subtrees, counted within the window.
#[cube]
pub(crate) fn columns(sums: u32, ends: u32, first: u32) -> Columns {
    Columns {
        first,
        sums: load_pair(sums + first * 4, 0usize),
        ends: load_pair(ends + first * 4, 0usize),
    }
}

/// Whether the token of the `of`th of two columns is that of a row or above it.
#[cube]
pub(crate) fn is_above(columns: &Columns, #[comptime] of: usize, row: u32) -> bool {
    let column = columns.first + comptime!(of as u32);
    column <= row && row < columns.ends.extract(of)
}

/// The decay from the `of`th of two columns to a row with the path sum `row_sum`, or 0 if the
/// column's token is not that of the row or above it. The difference is exponentiated: powers of
/// the sums alone overflow.
#[cube]
pub(crate) fn decay_from(columns: &Columns, #[comptime] of: usize, row: u32, row_sum: f32) -> f32 {
    let sum = f32::reinterpret(columns.sums.extract(of));
    select(is_above(columns, of, row), exp2(row_sum - sum), 0.0f32)
}
