//! Decays between the rows of a window, and the numbers of rows that they follow from.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::log_decay::log_decay_of;
use super::arguments::Gates;
use super::blocks::ROWS;
use super::words::*;

/// A window of one value head.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct HeadWindow {
    /// First row.
    pub start: u32,
    /// Rows; 0 if the head is not there.
    pub length: u32,
    /// Value head.
    pub head: u32,
    pub value_heads: u32,
}

/// Where shared memory has the numbers of a window's rows.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct RowNumbers {
    /// Log decays to base 2.
    pub logs: u32,
    /// Their sums over the path within the window.
    pub sums: u32,
    pub betas: u32,
    /// Ends of subtrees, counted within the window.
    pub ends: u32,
}

/// Bytes of [`RowNumbers`].
pub(crate) const ROW_NUMBERS: usize = 4 * ROWS * 4;

/// The numbers that start at an address.
#[cube]
pub(crate) fn row_numbers(first: u32) -> RowNumbers {
    let array = comptime!(4 * ROWS as u32);
    let sums = first + array;
    let betas = sums + array;
    RowNumbers {
        logs: first,
        sums,
        betas,
        ends: betas + array,
    }
}

/// Writes all numbers but the sums, zeros past the window's rows, by units of which each has a row.
#[cube]
pub(crate) fn load_row_numbers(
    numbers: &RowNumbers,
    gates: &Gates,
    window: &HeadWindow,
    unit: u32,
) {
    if unit < ROWS as u32 {
        let mut log = 0.0f32;
        let mut of_beta = 0.0f32;
        let mut end = 0u32;
        if unit < window.length {
            let row = window.start + unit;
            let at = (row * window.value_heads + window.head) as usize;
            log = log_decay_of(gates.log_decay[at]) * comptime!(core::f32::consts::LOG2_E);
            of_beta = gates.beta[at];
            end = min(
                gates.subtree_ends[row as usize] - window.start,
                window.length,
            );
        }
        store_number(numbers.logs + unit * 4, 0usize, log);
        store_number(numbers.betas + unit * 4, 0usize, of_beta);
        store_word(numbers.ends + unit * 4, 0usize, end);
    }
}

/// The decay from a row, that of a unit, to the window's last row, or 0 if the row is not above it.
/// `sum`: the row's sum.
#[cube]
pub(crate) fn decay_to_last(numbers: &RowNumbers, row: u32, sum: f32, length: u32) -> f32 {
    let difference = load_number(numbers.sums + (length - 1) * 4, 0usize) - sum;
    let above = load_word(numbers.ends + row * 4, 0usize) == length;
    select(above, exp2(difference), 0.0f32)
}

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
