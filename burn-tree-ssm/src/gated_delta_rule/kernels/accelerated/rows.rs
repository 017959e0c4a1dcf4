//! Rows of one head of token-major tensors (`[R, heads, dim]` of 16-bit numbers), between global
//! and shared memory.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::blocks::*;

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

/// Rows of one head in global memory, from some row on.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct HeadRows {
    /// Address of the first row.
    pub first: u64,
    /// Bytes from row to row.
    pub row_bytes: u64,
}

/// The rows from `row` on of head `head` of the tensor at `address`.
#[cube]
pub(crate) fn head_rows(
    address: u64,
    row: u32,
    heads: u32,
    head: u32,
    #[comptime] dim: usize,
) -> HeadRows {
    let number = u64::cast_from(row) * u64::cast_from(heads) + u64::cast_from(head);
    HeadRows {
        first: address + number * comptime!(2 * dim as u64),
        row_bytes: u64::cast_from(heads * comptime!(2 * dim as u32)),
    }
}

/// The rows `row` rows further on.
#[cube]
pub(crate) fn rows_from(rows: &HeadRows, row: u32) -> HeadRows {
    HeadRows {
        first: rows.first + u64::cast_from(row) * rows.row_bytes,
        row_bytes: rows.row_bytes,
    }
}

/// The rows from `bytes` bytes of each row on.
#[cube]
pub(crate) fn columns_from(rows: &HeadRows, bytes: u32) -> HeadRows {
    HeadRows {
        first: rows.first + u64::cast_from(bytes),
        row_bytes: rows.row_bytes,
    }
}

/// Starts copying `rows` rows of `dim` 16-bit numbers into the tile at `shared`; rows from
/// `valid_rows` on become zero. `unit` is one of `units` units.
#[cube]
pub(crate) fn copy_head_rows(
    source: &HeadRows,
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
    let mut from = source.first + u64::cast_from(row) * source.row_bytes + u64::cast_from(chunk);
    let advance = source.row_bytes * comptime!(rows_of_pass as u64);
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

/// [`copy_head_rows`] of a window of `length` rows.
#[cube]
pub(crate) fn copy_window_rows(
    source: &HeadRows,
    shared: u32,
    unit: u32,
    length: u32,
    #[comptime] dim: usize,
    #[comptime] units: usize,
) {
    copy_head_rows(source, shared, unit, length, ROWS, dim, units);
}

/// Writes the first `valid` of 16 rows of a tile in shared memory, by one plane.
#[cube]
pub(crate) fn store_head_rows(
    shared: u32,
    target: &HeadRows,
    lane: u32,
    valid: u32,
    #[comptime] dim: usize,
) {
    let row_chunks = comptime!((2 * dim / CHUNK) as u32);
    #[unroll]
    for pass in 0..comptime!(16 * 2 * dim / CHUNK / PLANE) {
        let chunk = lane + comptime!((pass * PLANE) as u32);
        let row = chunk / row_chunks;
        if row < valid {
            // 16 bytes of padding per row.
            let from = shared + (chunk + row) * CHUNK as u32;
            let offset = u64::cast_from(chunk % row_chunks * CHUNK as u32);
            let to = target.first + u64::cast_from(row) * target.row_bytes + offset;
            store_chunk_global(to, load_chunk(from, 0usize));
        }
    }
}

/// Writes a plane's 16 rows of sums, rounded, through rows of a tile that the plane alone uses.
#[cube]
pub(crate) fn store_sums<E: Float>(
    sums: &Array<Accumulator>,
    staged: u32,
    target: &HeadRows,
    lane: u32,
    valid: u32,
    #[comptime] dim: usize,
) {
    stage_rows::<E>(sums, staged, lane, dim);
    store_head_rows(staged, target, lane, valid, dim);
}
