//! Copies of windows to shared memory for the kernel along paths.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::arguments::{Sizes, Windows};
use super::super::blocks::*;
use super::super::place::*;
use super::super::rows::*;
use super::super::states::*;
use super::paths::PathInputs;

/// Bytes of the numbers of a window's rows.
pub(super) const NUMBERS: usize = 4 * ROWS;

/// What a cube copies from.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Sources {
    query: HeadRows,
    key: HeadRows,
    /// Of the cube's value columns.
    value: HeadRows,
    mixing: HeadRows,
    scores: HeadRows,
    /// Address of the decays from the entry.
    decays: u64,
    /// Bytes from them to those to the last token.
    part: u64,
}

/// What the cube copies from.
#[cube]
pub(super) fn sources<E: Float>(
    inputs: &PathInputs<E>,
    sizes: &Sizes,
    place: &Place,
    #[comptime] config: PathConfig,
) -> Sources {
    let (key_dim, value_dim) = comptime!((config.key_dim, config.value_dim));
    let (key_heads, heads) = (sizes.key_heads, sizes.value_heads);
    let (key_head, head) = (place.key_head, place.head);
    let query = global_address::<E>(&inputs.query);
    let key = global_address::<E>(&inputs.key);
    let value = global_address::<E>(&inputs.value);
    let value = head_rows(value, 0u32, heads, head, value_dim);
    let mixing = global_address::<E>(&inputs.mixing);
    let scores = global_address::<E>(&inputs.scores);
    let decays = global_address::<f32>(&inputs.decays);
    Sources {
        query: head_rows(query, 0u32, key_heads, key_head, key_dim),
        key: head_rows(key, 0u32, key_heads, key_head, key_dim),
        value: columns_from(&value, 2 * place.first_column),
        mixing: head_rows(mixing, 0u32, heads, head, ROWS),
        scores: head_rows(scores, 0u32, heads, head, ROWS),
        decays: decays + u64::cast_from(head) * u64::cast_from(sizes.rows) * 4,
        part: u64::cast_from(heads) * u64::cast_from(sizes.rows) * 4,
    }
}

/// Starts and lengths of windows, from that `stages - 1` ahead to the one before: what a copying
/// plane needs.
#[derive(CubeType)]
pub(super) struct CopiedWindows {
    pub starts: Array<u32>,
    pub lengths: Array<u32>,
}

/// Windows to be filled.
#[cube]
pub(super) fn new_copied_windows(#[comptime] config: PathConfig) -> CopiedWindows {
    CopiedWindows {
        starts: Array::<u32>::new(comptime!(config.stages + 1)),
        lengths: Array::<u32>::new(comptime!(config.stages + 1)),
    }
}

/// The windows of the run as they are before its first one.
#[cube]
pub(super) fn load_first_windows(
    copied: &mut CopiedWindows,
    windows: &Windows,
    place: &Place,
    #[comptime] config: PathConfig,
) {
    #[unroll]
    for behind in 0..comptime!(config.stages + 1) {
        let ahead = comptime!((config.stages - 1).saturating_sub(behind) as u32);
        let window = min(place.first + ahead, place.end - 1) as usize;
        copied.starts[behind] = windows.starts[window];
        copied.lengths[behind] = windows.lengths[window];
    }
}

/// Start and length of the window `stages` ahead, or of the last one.
#[cube]
pub(super) fn window_ahead(
    windows: &Windows,
    window: u32,
    end: u32,
    #[comptime] config: PathConfig,
) -> (u32, u32) {
    let ahead = min(window + comptime!(config.stages as u32), end - 1) as usize;
    let start = windows.starts[ahead];
    let length = windows.lengths[ahead];
    (start, length)
}

/// Takes the windows one further.
#[cube]
pub(super) fn shift_windows(
    copied: &mut CopiedWindows,
    next_start: u32,
    next_length: u32,
    #[comptime] config: PathConfig,
) {
    let stages = comptime!(config.stages);
    #[unroll]
    for i in 0..stages {
        copied.starts[stages - i] = copied.starts[stages - 1 - i];
        copied.lengths[stages - i] = copied.lengths[stages - 1 - i];
    }
    copied.starts[0] = next_start;
    copied.lengths[0] = next_length;
}

/// Starts copying the first windows of a run: for updates all that have a stage but one, for
/// outputs all but two.
#[cube]
pub(super) fn copy_first_windows(
    copied: &CopiedWindows,
    sources: &Sources,
    place: &Place,
    shared: u32,
    #[comptime] config: PathConfig,
) {
    let stages = comptime!(config.stages);
    #[unroll]
    for ahead in 0..comptime!(stages - 1) {
        let window = place.first + ahead as u32;
        if window < place.end {
            let start = copied.starts[stages - 1 - ahead];
            let length = copied.lengths[stages - 1 - ahead];
            let to = shared + comptime!((ahead * config.update_bytes()) as u32);
            copy_update(sources, start, length, to, place.unit, config);
        }
        if comptime!(ahead > 0) {
            if window - 1 < place.end {
                let start = copied.starts[stages - ahead];
                let length = copied.lengths[stages - ahead];
                let before = comptime!(ahead.saturating_sub(1) * config.output_bytes());
                let to = shared + comptime!((config.outputs_at() + before) as u32);
                copy_output(sources, start, length, to, place.unit, config);
            }
        }
        commit_copies();
    }
}

/// Starts copying, while `window` is at hand, the windows that are copied next; `last_stage` is the
/// place of the one before it.
#[cube]
pub(super) fn copy_next_windows(
    copied: &CopiedWindows,
    sources: &Sources,
    place: &Place,
    window: u32,
    last_stage: u32,
    shared: u32,
    #[comptime] config: PathConfig,
) {
    let stages = comptime!(config.stages as u32);
    if window + comptime!(stages - 1) < place.end {
        let to = shared + last_stage * comptime!(config.update_bytes() as u32);
        copy_update(
            sources,
            copied.starts[0],
            copied.lengths[0],
            to,
            place.unit,
            config,
        );
    }
    if window + comptime!(stages - 2) < place.end {
        let before = select(last_stage == 0, comptime!(stages - 1), last_stage - 1);
        let to = shared
            + comptime!(config.outputs_at() as u32)
            + before * comptime!(config.output_bytes() as u32);
        copy_output(
            sources,
            copied.starts[1],
            copied.lengths[1],
            to,
            place.unit,
            config,
        );
    }
    commit_copies();
}

/// Starts copying what the sequence reads of a window, by one of the copying units.
#[cube]
fn copy_update(
    sources: &Sources,
    start: u32,
    length: u32,
    stage: u32,
    unit: u32,
    #[comptime] config: PathConfig,
) {
    let units = comptime!(config.copying());
    let mixing = stage + comptime!(config.key_tile() as u32);
    let values = mixing + SQUARE as u32;
    let decays = values + comptime!(config.slice_tile() as u32);
    let rows = rows_from(&sources.key, start);
    copy_window_rows(&rows, stage, unit, length, config.key_dim, units);
    let rows = rows_from(&sources.mixing, start);
    copy_triangle(&rows, mixing, unit, length, units);
    let rows = rows_from(&sources.value, start);
    copy_window_rows(
        &rows,
        values,
        unit,
        length,
        comptime!(config.columns()),
        units,
    );
    let from = sources.decays + u64::cast_from(start) * 4;
    copy_decays(from, sources.part, decays, unit, length, config);
}

/// Starts copying what outputs need of a window, by one of the copying units.
#[cube]
fn copy_output(
    sources: &Sources,
    start: u32,
    length: u32,
    stage: u32,
    unit: u32,
    #[comptime] config: PathConfig,
) {
    let units = comptime!(config.copying());
    let scores = stage + comptime!(config.key_tile() as u32);
    let decays = scores + SQUARE as u32;
    let rows = rows_from(&sources.query, start);
    copy_window_rows(&rows, stage, unit, length, config.key_dim, units);
    let rows = rows_from(&sources.scores, start);
    copy_triangle(&rows, scores, unit, length, units);
    if unit < ROWS as u32 {
        let from = sources.decays + (u64::cast_from(start) + u64::cast_from(unit)) * 4;
        copy_word_or_zero(from, decays + unit * 4, unit < length);
    }
}

/// Starts copying the blocks on and below the diagonal of a square tile; zeros from row `valid` on.
#[cube]
fn copy_triangle(source: &HeadRows, shared: u32, unit: u32, valid: u32, #[comptime] units: usize) {
    let row_chunks = comptime!(2 * ROWS / CHUNK);
    let rows_of_pass = comptime!(units / row_chunks);
    let row = unit / row_chunks as u32;
    let chunk = unit % row_chunks as u32;
    let to = shared + row * comptime!(row_stride(ROWS) as u32) + chunk * CHUNK as u32;
    let mut from = source.first
        + u64::cast_from(row) * source.row_bytes
        + u64::cast_from(chunk * CHUNK as u32);
    let advance = source.row_bytes * comptime!(rows_of_pass as u64);
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
