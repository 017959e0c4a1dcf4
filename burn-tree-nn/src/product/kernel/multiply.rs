//! The warpgroups that multiply.

use burn_tree_kit::cube::warpgroup::*;
use cubecl::prelude::*;

use super::arguments::Problem;
use super::config::{LEFT_BYTES, NARROW_COLUMNS, Output, PANEL_BYTES, ProductConfig};
use super::exchange::{ExchangeAddresses, add_parts, keep_part};
use super::results::{
    Destination, Destinations, destination, store_narrow, store_rounded, store_wide,
};
use super::stages::{release, stage_of};
use super::work::{item, items, place};
use crate::product::plan::Ending;

/// Sums of a unit: those of 64 x 256 numbers of a warpgroup.
const SUMS: usize = 128;
/// Sums of a unit of a narrow tile.
const NARROW_SUMS: usize = NARROW_COLUMNS / 2;

/// Computes this cube's tiles. Returns the number of steps.
#[cube]
pub(super) fn multiply_tiles<E: Float>(
    problem: &Problem,
    destinations: &Destinations<E>,
    exchange: &ExchangeAddresses,
    shared: u32,
    #[comptime] config: ProductConfig,
) -> u32 {
    let size!(Sums) = comptime!(SUMS);
    let warpgroup = UNIT_POS_X / WARPGROUP as u32;
    let items = items(problem, config.ending);
    let mut sums = Vector::<f32, Sums>::new(0.0f32);
    let mut step = 0u32;
    for index in 0..items.count {
        let item = item(&items, problem, index, config.ending);
        let (row, column_tile) = place(item.tile, problem);
        for of_tile in item.begin..item.end {
            let stage = stage_of(shared, step, config);
            wait_barrier(stage.filled, stage.parity);
            let left = stage.operands + warpgroup * comptime!(PANEL_BYTES as u32);
            let left = describe(left, 16usize);
            let right = stage.operands + comptime!(LEFT_BYTES as u32);
            let right = describe(right, comptime!(config.right_panel_bytes()));
            // The first step overwrites the sums of the last tile.
            let accumulate = u32::cast_from(of_tile > item.begin);
            let product = comptime!(config.product());
            sums = multiply_add_tiles::<E, Sums>(left, right, sums, accumulate, product);
            release(&stage);
            step += 1;
        }
        let row = row + warpgroup * 64;
        let destination = destination::<E>(destinations, column_tile, config);
        if comptime!(config.ending == Ending::Split) {
            if item.end < problem.steps {
                keep_part::<Sums>(sums, exchange);
            } else {
                if item.begin > 0 {
                    let (added, next) =
                        add_parts::<Sums>(sums, &item, problem, shared, step, config);
                    sums = added;
                    step = next;
                }
                store_tile::<E, Sums>(sums, row, problem, &destination, shared, config);
            }
        } else {
            store_tile::<E, Sums>(sums, row, problem, &destination, shared, config);
        }
    }
    step
}

#[cube]
fn store_tile<E: Float, N: Size>(
    sums: Vector<f32, N>,
    row: u32,
    problem: &Problem,
    destination: &Destination,
    shared: u32,
    #[comptime] config: ProductConfig,
) {
    if comptime!(config.output == Output::Rounded) {
        store_rounded::<E, N>(sums, row, destination, shared, config);
    } else {
        store_wide::<N>(sums, row, problem, destination);
    }
}

/// Computes this cube's narrow tiles, from step `first` on.
#[cube]
pub(super) fn multiply_narrow_tiles<E: Float>(
    problem: &Problem,
    destinations: &Destinations<E>,
    shared: u32,
    first: u32,
    #[comptime] config: ProductConfig,
) {
    let size!(Sums) = comptime!(NARROW_SUMS);
    let warpgroup = UNIT_POS_X / WARPGROUP as u32;
    let whole = problem.row_tiles * problem.column_tiles - problem.divided;
    let mut sums = Vector::<f32, Sums>::new(0.0f32);
    let mut step = first;
    let mut narrow = CUBE_POS_X;
    while narrow < 4 * problem.divided {
        let (row, column_tile) = place(whole + narrow / 4, problem);
        for pair in 0..problem.steps.div_ceil(2) {
            let stage = stage_of(shared, step, config);
            wait_barrier(stage.filled, stage.parity);
            let left = stage.operands + warpgroup * comptime!(PANEL_BYTES as u32);
            let left = describe(left, 16usize);
            let right = stage.operands + comptime!((2 * LEFT_BYTES) as u32);
            let right = describe(right, 16usize);
            let accumulate = u32::cast_from(pair > 0);
            let product = comptime!(config.narrow_product());
            sums = multiply_add_tiles::<E, Sums>(left, right, sums, accumulate, product);
            release(&stage);
            step += 1;
        }
        let row = row + warpgroup * 64;
        let mut destination = destination::<E>(destinations, column_tile, config);
        destination.column += narrow % 4 * NARROW_COLUMNS as u32;
        store_narrow::<E, Sums>(sums, row, &destination, shared, config);
        narrow += CUBE_COUNT_X;
    }
}
