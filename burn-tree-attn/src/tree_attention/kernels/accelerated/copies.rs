//! Copies to shared memory that several kernels start.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::arguments::Mask;
use super::stage::TILE_ROWS;
use super::warpgroup::*;

/// Starts copying rows of two tensors, as [`copy_rows`], into tiles one after the other.
#[cube]
pub(crate) fn copy_rows_of_both(
    first: u64,
    second: u64,
    shared: u32,
    valid_rows: u32,
    #[comptime] rows: usize,
    #[comptime] head_dim: usize,
    #[comptime] units: usize,
    #[comptime] checked: bool,
) {
    let unit = UNIT_POS_X;
    let tile_bytes = comptime!(tile_bytes(rows, head_dim) as u32);
    copy_rows(
        first, shared, unit, valid_rows, rows, head_dim, units, checked,
    );
    let shared = shared + tile_bytes;
    copy_rows(
        second, shared, unit, valid_rows, rows, head_dim, units, checked,
    );
}

/// Starts copying rows of two tensors, as [`copy_panel_rows`], into tiles one after the other, by
/// all units of a cube of one warpgroup.
#[cube]
pub(crate) fn copy_panels_of_both(
    first: u64,
    second: u64,
    shared: u32,
    valid_rows: u32,
    #[comptime] rows: usize,
    #[comptime] head_dim: usize,
    #[comptime] checked: bool,
) {
    let copy = comptime!(PanelCopy {
        rows,
        tile_rows: rows,
        head_dim,
        units: PLANES * PLANE,
    });
    copy_panel_rows(first, shared, UNIT_POS_X, valid_rows, copy, checked);
    let shared = shared + comptime!(panel_tile_bytes(rows, head_dim) as u32);
    copy_panel_rows(second, shared, UNIT_POS_X, valid_rows, copy, checked);
}

/// Starts copying the intervals of a tile's keys and, under a window, their positions, zeros from
/// key `valid` on; `first` is the first key in the mask's arrays. In shared memory, arrays are
/// `array_bytes` apart, from `to` on.
#[cube]
pub(crate) fn copy_intervals(
    mask: &Mask,
    to: u32,
    first: u32,
    unit: u32,
    valid: u32,
    #[comptime] array_bytes: usize,
    #[comptime] window: bool,
) {
    let array_bytes = comptime!(array_bytes as u32);
    // They may begin at any multiple of 4 bytes, so they are copied word by word.
    let from = u64::cast_from(first) * 4;
    copy_words(
        global_address::<u32>(&mask.key_start) + from,
        to,
        unit,
        valid,
    );
    let to = to + array_bytes;
    copy_words(global_address::<u32>(&mask.key_end) + from, to, unit, valid);
    if comptime!(window) {
        let to = to + array_bytes;
        let from = global_address::<u32>(&mask.key_position) + from;
        copy_words(from, to, unit, valid);
    }
}

/// Starts copying a word for each row of a tile, zeros from row `valid` on.
#[cube]
fn copy_words(from: u64, to: u32, unit: u32, valid: u32) {
    // There are fewer rows than units.
    if unit < TILE_ROWS as u32 {
        copy_word_or_zero(from + u64::cast_from(unit) * 4, to + unit * 4, unit < valid);
    }
}
