//! Stages of the warpgroup kernels. A stage holds two tiles of a plan, which need not be
//! neighbours; a warpgroup of its own copies them to shared memory. Products of 64 x 128 keep the
//! tensor cores busier than those of 64 x 64, for which shared memory is too slow.

use cubecl::prelude::*;

use super::barrier::arrive;
use super::warpgroup::*;
use burn_tree_kit::cube::matrix::*;

/// Rows of a tile of the plan on the side that is streamed.
pub(crate) const TILE_ROWS: usize = 64;
/// Rows of a stage.
pub(crate) const STAGE_ROWS: usize = 2 * TILE_ROWS;
/// Units that copy: one plane cannot issue copies as fast as the others use what they bring.
pub(crate) const COPYING: usize = 4 * PLANE;
/// Stages in shared memory.
pub(crate) const STAGES: usize = 2;

/// The entry at `index` of a list that ends before `end`, and the number of rows, of `n_rows`, from
/// its tile on. Past the end: a partial entry of no rows.
#[cube]
pub(crate) fn entry_of(entries: &[u32], index: u32, end: u32, n_rows: u32) -> (u32, u32) {
    let listed = index < end;
    let entry = entries[min(index, end - 1) as usize];
    let valid = n_rows - (entry >> 1) * TILE_ROWS as u32;
    (
        select(listed, entry, entry | 1),
        select(listed, valid, 0u32),
    )
}

/// Tells those who wait at `barrier` that all but the `pending` youngest groups of copies are
/// there.
#[cube]
pub(crate) fn land(barrier: u32, #[comptime] pending: usize) {
    wait_copies(pending);
    fence_products();
    arrive(barrier);
}

/// Starts copying a tile into half of a stage, by the copying units, zeros from row `valid` on.
#[cube]
pub(crate) fn copy_tile(
    from: u64,
    stage: u32,
    #[comptime] half: u32,
    unit: u32,
    valid: u32,
    entry: u32,
    #[comptime] head_dim: usize,
) {
    let to = stage + comptime!(half * (TILE_ROWS * 128) as u32);
    let copy = comptime!(PanelCopy {
        rows: TILE_ROWS,
        tile_rows: STAGE_ROWS,
        head_dim,
        units: COPYING,
    });
    if entry & 1 == 1 {
        copy_panel_rows(from, to, unit, valid, copy, true);
    } else {
        copy_panel_rows(from, to, unit, valid, copy, false);
    }
}
