//! Parts of sums that one cube leaves for another.
//!
//! With [`Ending::Split`](crate::product::plan::Ending::Split) the steps of the divided tiles are
//! dealt out in equal ranges. A cube goes through its range from the end; where it does not reach the
//! last step of a tile, it leaves its sums as a part. The cube with the last steps adds the parts of
//! the cubes before it, in order, so that two runs give the same bits. It waits only for the first
//! item of cubes with lower numbers: they cannot wait for each other in a circle, since all cubes of
//! a launch run at once.

use burn_tree_kit::cube::warpgroup::*;
use cubecl::prelude::*;

use super::arguments::Problem;
use super::config::{ProductConfig, STAGE_BYTES};
use super::stages::{begin_filling, release, stage_of};
use super::work::Item;

/// Bytes of a part of a warpgroup: 64 x 256 sums.
const PART_BYTES: usize = 64 * 256 * 4;
/// A part is copied in quarters of as many bytes.
const QUARTER_BYTES: usize = PART_BYTES / 4;
/// Bytes that the units of a warpgroup write at a time, 16 each.
const ROUND_BYTES: usize = 16 * WARPGROUP;

/// Global memory for parts.
#[derive(CubeType, Clone, Copy)]
pub(super) struct ExchangeAddresses {
    pub parts: u64,
    pub flags: u64,
}

/// The part of a warpgroup of a cube, counted over both.
#[cube]
fn part_of(parts: u64, number: u32) -> u64 {
    parts + u64::cast_from(number) * comptime!(PART_BYTES as u64)
}

/// The first of the cubes before this one that have steps of a tile.
#[cube]
fn first_cube(item: &Item, problem: &Problem) -> u32 {
    let steps = problem.divided * problem.steps;
    ((item.tile * problem.steps + 1) * CUBE_COUNT_X - 1) / steps
}

/// Leaves the sums of this warpgroup for another cube.
#[cube]
pub(super) fn keep_part<N: Size>(sums: Vector<f32, N>, exchange: &ExchangeAddresses) {
    let warpgroup = UNIT_POS_X / WARPGROUP as u32;
    let unit = UNIT_POS_X % WARPGROUP as u32;
    let number = 2 * CUBE_POS_X + warpgroup;
    let to = part_of(exchange.parts, number) + u64::cast_from(unit * 16);
    #[unroll]
    for round in 0..comptime!(PART_BYTES / ROUND_BYTES) {
        let at = comptime!(4 * round);
        store_four_global(
            to,
            comptime!(round * ROUND_BYTES),
            sums.extract(at),
            sums.extract(comptime!(at + 1)),
            sums.extract(comptime!(at + 2)),
            sums.extract(comptime!(at + 3)),
        );
    }
    fence_bulk_copies();
    wait_for_units(warpgroup + 1, WARPGROUP);
    if unit == 0 {
        set_flag(exchange.flags + u64::cast_from(4 * number));
    }
}

/// For the copying unit: copies the parts of other cubes through the stages, from step `first` on.
/// Returns the number of steps.
#[cube]
pub(super) fn load_parts(
    item: &Item,
    problem: &Problem,
    exchange: &ExchangeAddresses,
    shared: u32,
    first: u32,
    #[comptime] config: ProductConfig,
) -> u32 {
    let mut step = first;
    for cube in first_cube(item, problem)..CUBE_POS_X {
        #[unroll]
        for warpgroup in 0..2u32 {
            take_flag(exchange.flags + u64::cast_from(4 * (2 * cube + warpgroup)));
        }
        fence_bulk_copies();
        #[unroll]
        for quarter in 0..4u64 {
            let stage = stage_of(shared, step, config);
            begin_filling(&stage, comptime!(2 * QUARTER_BYTES));
            #[unroll]
            for warpgroup in 0..2u32 {
                let part = part_of(exchange.parts, 2 * cube + warpgroup);
                load_bytes(
                    part + comptime!(quarter * QUARTER_BYTES as u64),
                    stage.operands + comptime!(warpgroup * QUARTER_BYTES as u32),
                    stage.filled,
                    QUARTER_BYTES,
                );
            }
            step += 1;
        }
    }
    step
}

/// `sums` plus the parts of other cubes that [`load_parts`] copies, and the next step.
#[cube]
pub(super) fn add_parts<N: Size>(
    sums: Vector<f32, N>,
    item: &Item,
    problem: &Problem,
    shared: u32,
    first: u32,
    #[comptime] config: ProductConfig,
) -> (Vector<f32, N>, u32) {
    let warpgroup = UNIT_POS_X / WARPGROUP as u32;
    let unit = UNIT_POS_X % WARPGROUP as u32;
    let mut sums = sums;
    let mut step = first;
    for _cube in first_cube(item, problem)..CUBE_POS_X {
        #[unroll]
        for quarter in 0..4usize {
            let stage = stage_of(shared, step, config);
            wait_barrier(stage.filled, stage.parity);
            let from = stage.operands + warpgroup * comptime!(QUARTER_BYTES as u32) + unit * 16;
            #[unroll]
            for round in 0..comptime!(QUARTER_BYTES / ROUND_BYTES) {
                let part = load_sums(from, comptime!(round * ROUND_BYTES));
                #[unroll]
                for number in 0..4usize {
                    let at = comptime!(32 * quarter + 4 * round + number);
                    sums.insert(at, sums.extract(at) + part.extract(number));
                }
            }
            wait_for_units(warpgroup + 1, WARPGROUP);
            release(&stage);
            step += 1;
        }
    }
    (sums, step)
}

/// Checks at compile time that a stage holds a quarter of two parts.
const _: () = assert!(2 * QUARTER_BYTES <= STAGE_BYTES);
