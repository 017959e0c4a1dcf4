//! The unit that copies operands to shared memory.

use burn_tree_kit::cube::warpgroup::*;
use cubecl::prelude::*;

use super::arguments::{Problem, Right, Source, source};
use super::config::{LEFT_BYTES, NARROW_COLUMNS, PANEL_BYTES, ProductConfig, STAGE_BYTES};
use super::exchange::{ExchangeAddresses, load_parts};
use super::stages::{begin_filling, stage_of};
use super::work::{item, items, place};
use crate::product::Form;
use crate::product::plan::{Ending, STEP};

/// Copies the operands of this cube's tiles, step by step. Returns the number of steps.
#[cube]
pub(super) fn load_tiles<E: Float>(
    left: &Sequence<TensorMap<E, Tiled>>,
    right: &Sequence<Right<E>>,
    problem: &Problem,
    exchange: &ExchangeAddresses,
    shared: u32,
    #[comptime] config: ProductConfig,
) -> u32 {
    let items = items(problem, config.ending);
    let mut step = 0u32;
    for index in 0..items.count {
        let item = item(&items, problem, index, config.ending);
        let (row, column_tile) = place(item.tile, problem);
        for of_tile in item.begin..item.end {
            let stage = stage_of(shared, step, config);
            let source = source::<E>(left, right, of_tile, column_tile, config.joined);
            begin_filling(&stage, STAGE_BYTES);
            load_left(&source, row, stage.operands, stage.filled, config.form);
            let to = stage.operands + comptime!(LEFT_BYTES as u32);
            load_right(&source, to, stage.filled, config.form);
            step += 1;
        }
        if comptime!(config.ending == Ending::Split) {
            if item.begin > 0 && item.end == problem.steps {
                step = load_parts(&item, problem, exchange, shared, step, config);
            }
        }
    }
    step
}

/// Copies the operands of this cube's narrow tiles, two steps at a time, from step `first` on.
#[cube]
pub(super) fn load_narrow_tiles<E: Float>(
    left: &Sequence<TensorMap<E, Tiled>>,
    right: &Sequence<Right<E>>,
    problem: &Problem,
    shared: u32,
    first: u32,
    #[comptime] config: ProductConfig,
) {
    let whole = problem.row_tiles * problem.column_tiles - problem.divided;
    let mut step = first;
    let mut narrow = CUBE_POS_X;
    while narrow < 4 * problem.divided {
        let (row, column_tile) = place(whole + narrow / 4, problem);
        for pair in 0..problem.steps.div_ceil(2) {
            let stage = stage_of(shared, step, config);
            let mut source = source::<E>(left, right, 2 * pair, column_tile, config.joined);
            source.column += narrow % 4 * NARROW_COLUMNS as u32;
            begin_filling(&stage, STAGE_BYTES);
            #[unroll]
            for half in 0..2u32 {
                let to = stage.operands + comptime!(half * LEFT_BYTES as u32);
                load_left(&source, row, to, stage.filled, config.form);
                let to =
                    stage.operands + comptime!((2 * LEFT_BYTES) as u32 + half * PANEL_BYTES as u32);
                load_narrow_right(&source, to, stage.filled, config.form);
                source.summed += STEP as u32;
            }
            step += 1;
        }
        narrow += CUBE_COUNT_X;
    }
}

/// Copies 128 rows of the left operand.
#[cube]
fn load_left(source: &Source, row: u32, to: u32, barrier: u32, #[comptime] form: Form) {
    if comptime!(form.left() == Major::Kept) {
        load_box(source.left, row, source.summed, to, barrier);
        let second = to + comptime!(PANEL_BYTES as u32);
        load_box(source.left, row + 64, source.summed, second, barrier);
    } else {
        load_box(source.left, source.summed, row, to, barrier);
    }
}

/// Copies 256 columns of the right operand.
#[cube]
fn load_right(source: &Source, to: u32, barrier: u32, #[comptime] form: Form) {
    if comptime!(form.right() == Major::Kept) {
        #[unroll]
        for panel in 0..4u32 {
            let to = to + comptime!(panel * PANEL_BYTES as u32);
            let column = source.column + comptime!(panel * 64);
            load_box(source.right, column, source.summed, to, barrier);
        }
    } else {
        load_box(source.right, source.summed, source.column, to, barrier);
    }
}

/// Copies 64 columns of the right operand.
#[cube]
fn load_narrow_right(source: &Source, to: u32, barrier: u32, #[comptime] form: Form) {
    if comptime!(form.right() == Major::Kept) {
        load_box(
            source.narrow_right,
            source.column,
            source.summed,
            to,
            barrier,
        );
    } else {
        load_box(
            source.narrow_right,
            source.summed,
            source.column,
            to,
            barrier,
        );
    }
}
