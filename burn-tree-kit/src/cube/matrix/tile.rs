//! Padded tiles in shared memory.

use cubecl::prelude::*;

use super::{CHUNK, copy_chunk, copy_chunk_or_zero};

/// Bytes from one row of a tile in shared memory to the next, for rows of `head_dim` 16-bit
/// numbers.
pub const fn row_stride(head_dim: usize) -> usize {
    2 * head_dim + CHUNK
}

/// Bytes of a tile of `rows` rows of `head_dim` 16-bit numbers in shared memory.
pub const fn tile_bytes(rows: usize, head_dim: usize) -> usize {
    rows * row_stride(head_dim)
}

/// Starts copying `rows` contiguous rows of `head_dim` 16-bit numbers from `global` (the address of
/// the first row) into the tile at `shared`. `units` units share the work; this one is number
/// `unit`. With `checked`, rows from `valid_rows` on become zero; otherwise all rows are valid.
#[cube]
pub fn copy_rows(
    global: u64,
    shared: u32,
    unit: u32,
    valid_rows: u32,
    #[comptime] rows: usize,
    #[comptime] head_dim: usize,
    #[comptime] units: usize,
    #[comptime] checked: bool,
) {
    let row_chunks = comptime!(2 * head_dim / CHUNK);
    let chunks = comptime!(rows * row_chunks);
    let passes = comptime!(chunks.div_ceil(units));
    let from = global + u64::cast_from(unit * CHUNK as u32);
    if comptime!(units.is_multiple_of(row_chunks) && chunks.is_multiple_of(units)) {
        // Every pass advances by a whole number of rows, so that offsets are constants.
        let row = unit / row_chunks as u32;
        let to = shared + unit * CHUNK as u32 + row * CHUNK as u32;
        #[unroll]
        for pass in 0..passes {
            let global_offset = comptime!(pass * units * CHUNK);
            let shared_offset = comptime!(pass * units / row_chunks * row_stride(head_dim));
            if comptime!(checked) {
                let row_of_pass = comptime!((pass * units / row_chunks) as u32);
                let valid = row + row_of_pass < valid_rows;
                copy_chunk_or_zero(from, global_offset, to, shared_offset, valid);
            } else {
                copy_chunk(from, global_offset, to, shared_offset);
            }
        }
    } else {
        #[unroll]
        for pass in 0..passes {
            let global_offset = comptime!(pass * units * CHUNK);
            let chunk = unit + comptime!((pass * units) as u32);
            let row = chunk / row_chunks as u32;
            let to = shared + chunk * CHUNK as u32 + row * CHUNK as u32;
            if comptime!((pass + 1) * units <= chunks) {
                copy_chunk_or_zero(from, global_offset, to, 0usize, row < valid_rows);
            } else if chunk < comptime!(chunks as u32) {
                copy_chunk_or_zero(from, global_offset, to, 0usize, row < valid_rows);
            }
        }
    }
}

/// The offset in bytes that a lane adds to the address of a 16 x 16 block of a tile to load it with
/// `load_block` as
/// * the left operand whose rows are the tile's rows, or
/// * transposed, the right operands whose columns are the tile's columns 0-7 and 8-15 (registers 0
///   and 1, 2 and 3): sums run over the tile's rows.
#[cube]
pub fn lane_offset_by_rows(lane: u32, #[comptime] head_dim: usize) -> u32 {
    let stride = comptime!(row_stride(head_dim) as u32);
    (lane % 16) * stride + (lane / 16) * CHUNK as u32
}

/// The offset in bytes that a lane adds to the address of a 16 x 16 block of a tile to load it with
/// `load_block` as
/// * the right operands whose columns are the tile's rows 0-7 and 8-15 (registers 0 and 1, 2 and
///   3): sums run over the tile's columns, or
/// * transposed, the left operand whose rows are the tile's columns.
#[cube]
pub fn lane_offset_by_columns(lane: u32, #[comptime] head_dim: usize) -> u32 {
    let stride = comptime!(row_stride(head_dim) as u32);
    ((lane / 16) * 8 + lane % 8) * stride + (lane / 8 % 2) * CHUNK as u32
}
