//! Copies of windows to shared memory for the kernel along paths.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::blocks::*;
use super::super::states::*;

/// Bytes of a 16-bit tile of a window's rows and columns.
pub(super) const SQUARE: usize = tile_bytes(ROWS, ROWS);
/// Bytes of the numbers of a window's rows.
pub(super) const NUMBERS: usize = 4 * ROWS;
/// What a cube copies from.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Sources {
    pub(super) query: u64,
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) mixing: u64,
    pub(super) scores: u64,
    pub(super) decays: u64,
    pub(super) key_row_bytes: u64,
    pub(super) value_row_bytes: u64,
    pub(super) square_row_bytes: u64,
    /// Bytes from the decays from the entry to those to the last token.
    pub(super) part: u64,
}

/// Starts copying what the sequence reads of a window, by one of the copying units.
#[cube]
pub(super) fn copy_update(
    sources: &Sources,
    start: u32,
    length: u32,
    stage: u32,
    unit: u32,
    #[comptime] config: PathConfig,
) {
    let units = comptime!(config.copying());
    let row = u64::cast_from(start);
    let mixing = stage + comptime!(config.key_tile() as u32);
    let values = mixing + SQUARE as u32;
    let decays = values + comptime!(config.slice_tile() as u32);
    copy_spread_rows(
        sources.key + row * sources.key_row_bytes,
        sources.key_row_bytes,
        stage,
        unit,
        length,
        ROWS,
        config.key_dim,
        units,
    );
    copy_triangle(
        sources.mixing + row * sources.square_row_bytes,
        sources.square_row_bytes,
        mixing,
        unit,
        length,
        units,
    );
    copy_spread_rows(
        sources.value + row * sources.value_row_bytes,
        sources.value_row_bytes,
        values,
        unit,
        length,
        ROWS,
        comptime!(config.columns()),
        units,
    );
    copy_decays(
        sources.decays + row * 4,
        sources.part,
        decays,
        unit,
        length,
        config,
    );
}

/// Starts copying what outputs need of a window, by one of the copying units.
#[cube]
pub(super) fn copy_output(
    sources: &Sources,
    start: u32,
    length: u32,
    stage: u32,
    unit: u32,
    #[comptime] config: PathConfig,
) {
    let units = comptime!(config.copying());
    let row = u64::cast_from(start);
    let scores = stage + comptime!(config.key_tile() as u32);
    let decays = scores + SQUARE as u32;
    copy_spread_rows(
        sources.query + row * sources.key_row_bytes,
        sources.key_row_bytes,
        stage,
        unit,
        length,
        ROWS,
        config.key_dim,
        units,
    );
    copy_triangle(
        sources.scores + row * sources.square_row_bytes,
        sources.square_row_bytes,
        scores,
        unit,
        length,
        units,
    );
    if unit < ROWS as u32 {
        let from = sources.decays + (row + u64::cast_from(unit)) * 4;
        copy_word_or_zero(from, decays + unit * 4, unit < length);
    }
}

/// Starts copying the blocks on and below the diagonal of a square tile; zeros from row `valid` on.
#[cube]
fn copy_triangle(
    global: u64,
    row_bytes: u64,
    shared: u32,
    unit: u32,
    valid: u32,
    #[comptime] units: usize,
) {
    let row_chunks = comptime!(2 * ROWS / CHUNK);
    let rows_of_pass = comptime!(units / row_chunks);
    let row = unit / row_chunks as u32;
    let chunk = unit % row_chunks as u32;
    let to = shared + row * comptime!(row_stride(ROWS) as u32) + chunk * CHUNK as u32;
    let mut from = global + u64::cast_from(row) * row_bytes + u64::cast_from(chunk * CHUNK as u32);
    let advance = row_bytes * comptime!(rows_of_pass as u64);
    #[unroll]
    for pass in 0..comptime!(ROWS / rows_of_pass) {
        let first = comptime!(pass * rows_of_pass);
        // Passes are no more than 16 rows.
        if chunk < comptime!(2 * (first as u32 / 16 + 1)) {
            copy_chunk_or_zero(
                from,
                0usize,
                to,
                comptime!(first * row_stride(ROWS)),
                row + comptime!(first as u32) < valid,
            );
        }
        from += advance;
    }
}
