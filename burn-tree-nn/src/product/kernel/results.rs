//! From sums in registers to the result.

use burn_tree_kit::cube::matrix::global_address;
use burn_tree_kit::cube::warpgroup::*;
use cubecl::prelude::*;

use super::arguments::Problem;
use super::config::{Output, PANEL_BYTES, ProductConfig};
use crate::product::plan::TILE_COLUMNS;

/// The results of a launch.
#[derive(CubeType, CubeLaunch)]
pub(in crate::product) struct Destinations<E: Float> {
    /// With [`Output::Rounded`], one for all right operands or one for each.
    pub rounded: Sequence<TensorMap<E, Tiled>>,
    /// With [`Output::Wide`], one.
    pub wide: Sequence<Box<[f32]>>,
    /// End of each rounded result among the column tiles.
    pub ends: Sequence<u32>,
}

/// Where a tile goes.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Destination {
    /// Of a tensor map, or of numbers.
    pub address: u64,
    /// The first column.
    pub column: u32,
}

/// Where a tile of column tile number `column_tile` goes.
#[cube]
pub(super) fn destination<E: Float>(
    destinations: &Destinations<E>,
    column_tile: u32,
    #[comptime] config: ProductConfig,
) -> Destination {
    if comptime!(config.output == Output::Rounded) {
        let mut address = map_address::<E>(destinations.rounded.index(0usize));
        let mut start = 0u32;
        #[unroll]
        for index in 1..destinations.rounded.len() {
            let before = *destinations.ends.index(comptime!(index - 1));
            if column_tile >= before {
                address = map_address::<E>(destinations.rounded.index(index));
                start = before;
            }
        }
        Destination {
            address,
            column: (column_tile - start) * TILE_COLUMNS as u32,
        }
    } else {
        Destination {
            address: global_address(&destinations.wide[0]),
            column: column_tile * TILE_COLUMNS as u32,
        }
    }
}

/// Writes 64 x 256 sums of a warpgroup, rounded, to rows from `row` on.
#[cube]
pub(super) fn store_rounded<E: Float, N: Size>(
    sums: Vector<f32, N>,
    row: u32,
    destination: &Destination,
    shared: u32,
    #[comptime] config: ProductConfig,
) {
    let panels = begin_panels(shared, config);
    #[unroll]
    for panel in 0..4usize {
        let to = panels + comptime!((panel * PANEL_BYTES) as u32);
        store_panel::<E, N>(sums, to, comptime!(64 * panel));
    }
    if finish_panels() {
        #[unroll]
        for panel in 0..4usize {
            let from = panels + comptime!((panel * PANEL_BYTES) as u32);
            let column = destination.column + comptime!(64 * panel as u32);
            store_box(destination.address, column, row, from);
        }
        commit_stores();
    }
}

/// Writes 64 x 64 sums of a warpgroup, rounded.
#[cube]
pub(super) fn store_narrow<E: Float, N: Size>(
    sums: Vector<f32, N>,
    row: u32,
    destination: &Destination,
    shared: u32,
    #[comptime] config: ProductConfig,
) {
    let panel = begin_panels(shared, config);
    store_panel::<E, N>(sums, panel, 0usize);
    if finish_panels() {
        store_box(destination.address, destination.column, row, panel);
        commit_stores();
    }
}

/// Waits until the panels of this warpgroup are free. Returns the address of the first.
#[cube]
fn begin_panels(shared: u32, #[comptime] config: ProductConfig) -> u32 {
    let warpgroup = UNIT_POS_X / WARPGROUP as u32;
    if UNIT_POS_X % WARPGROUP as u32 == 0 {
        wait_stores_read();
    }
    wait_for_units(warpgroup + 1, WARPGROUP);
    shared
        + comptime!(config.results_at() as u32)
        + warpgroup * comptime!(config.results_bytes() as u32)
}

/// Waits until the warpgroup has written its panels. Whether this unit is the one that copies them.
#[cube]
fn finish_panels() -> bool {
    fence_shared_copies();
    wait_for_units(UNIT_POS_X / WARPGROUP as u32 + 1, WARPGROUP);
    UNIT_POS_X % WARPGROUP as u32 == 0
}

/// Writes 64 x 256 sums of a warpgroup as they are.
#[cube]
pub(super) fn store_wide<N: Size>(
    sums: Vector<f32, N>,
    row: u32,
    problem: &Problem,
    destination: &Destination,
) {
    let lane = UNIT_POS_X % 32;
    let row = row + UNIT_POS_X % WARPGROUP as u32 / 32 * 16 + lane / 4;
    let column = destination.column + lane % 4 * 2;
    let start = u64::cast_from(row) * u64::cast_from(problem.columns) + u64::cast_from(column);
    let first = destination.address + start * 4;
    let second = first + u64::cast_from(problem.columns) * 32;
    #[unroll]
    for block in 0..32usize {
        let at = comptime!(4 * block);
        let offset = comptime!(32 * block);
        // Columns are a multiple of 8, so that a pair is within or beyond them.
        if column + comptime!(8 * block as u32) < problem.columns {
            if row < problem.rows {
                let next = sums.extract(comptime!(at + 1));
                store_pair_global(first, offset, sums.extract(at), next);
            }
            if row + 8 < problem.rows {
                let below = sums.extract(comptime!(at + 2));
                store_pair_global(second, offset, below, sums.extract(comptime!(at + 3)));
            }
        }
    }
}
