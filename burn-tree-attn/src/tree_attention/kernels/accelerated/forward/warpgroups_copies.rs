//! The ring of stages between the warpgroup that copies and those that compute.

use cubecl::prelude::*;

use super::super::arguments::*;
use super::super::barrier::*;
use super::super::copies::copy_intervals;
use super::super::stage::*;
use super::config::WarpgroupForwardConfig;
use burn_tree_kit::cube::matrix::*;

/// A place in the ring of stages.
#[derive(CubeType)]
pub(super) struct Slot {
    pub stage: u32,
    /// Of the barriers' phases.
    pub parity: u32,
}

#[cube]
impl Slot {
    /// Goes to the next stage.
    pub fn advance(&mut self) {
        self.stage += 1;
        if self.stage == STAGES as u32 {
            self.stage = 0;
            self.parity = self.parity ^ 1;
        }
    }
}

/// Addresses of a stage.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Stage {
    pub keys: u32,
    pub values: u32,
    /// Intervals of the keys.
    pub words: u32,
    /// The first of its barriers: keys there, keys free, values there, values free.
    pub barrier: u32,
}

/// The stage with a number.
#[cube]
pub(super) fn stage_at(
    shared: u32,
    stage: u32,
    #[comptime] config: WarpgroupForwardConfig,
) -> Stage {
    let keys = shared
        + comptime!(config.stages_at() as u32)
        + stage * comptime!(2 * config.key_bytes() as u32);
    let values = keys + comptime!(config.key_bytes() as u32);
    let words = shared
        + comptime!(config.words_at() as u32)
        + stage * comptime!(config.words_bytes() as u32);
    let barrier = shared
        + comptime!(config.barriers_at() as u32)
        + stage * comptime!(4 * BARRIER_BYTES as u32);
    Stage {
        keys,
        values,
        words,
        barrier,
    }
}

/// Makes the barriers of all stages. One unit does it.
#[cube]
pub(super) fn init_barriers(shared: u32, #[comptime] config: WarpgroupForwardConfig) {
    let barriers = shared + comptime!(config.barriers_at() as u32);
    #[unroll]
    for stage in 0..STAGES {
        let barrier = barriers + comptime!((stage * 4 * BARRIER_BYTES) as u32);
        let planes = comptime!(config.computing_units() / PLANE);
        init_barrier(barrier, COPYING);
        init_barrier(barrier + 8, planes);
        init_barrier(barrier + 16, COPYING);
        init_barrier(barrier + 24, planes);
    }
}

/// What the copying units do: they bring keys and values to the stages as these become free.
#[cube]
pub(super) fn copy_stages<E: Float>(
    tensors: &Tensors<E>,
    plan: &Plan,
    tile: &QueryTile,
    shared: u32,
    #[comptime] config: WarpgroupForwardConfig,
) {
    let (begin, end) = (tile.begin, tile.end);
    let mut slot = Slot {
        stage: 0u32,
        parity: 1u32,
    };
    // Barrier of the values that are on their way.
    let mut landing = shared + comptime!(config.barriers_at() as u32);
    let mut index = begin;
    while index < end {
        let stage = stage_at(shared, slot.stage, config);
        wait_barrier(stage.barrier + 8, slot.parity);
        #[unroll]
        for half in 0..2u32 {
            let (entry, valid) = entry_of(&plan.lists.entries, index + half, end, tile.n_keys);
            if entry & 1 == 1 {
                copy_intervals(
                    &plan.mask,
                    stage.words + comptime!(half * 4 * TILE_ROWS as u32),
                    tile.batch * tile.n_keys + (entry >> 1) * TILE_ROWS as u32,
                    UNIT_POS_X % COPYING as u32,
                    valid,
                    comptime!(4 * STAGE_ROWS),
                    config.window,
                );
            }
            copy_half::<E>(
                &tensors.key,
                tile,
                entry,
                valid,
                stage.keys,
                half,
                config.head_dim,
            );
        }
        commit_copies();
        if index > begin {
            land(landing, 1usize);
        }

        wait_barrier(stage.barrier + 24, slot.parity);
        #[unroll]
        for half in 0..2u32 {
            let (entry, valid) = entry_of(&plan.lists.entries, index + half, end, tile.n_keys);
            copy_half::<E>(
                &tensors.value,
                tile,
                entry,
                valid,
                stage.values,
                half,
                config.head_dim,
            );
        }
        commit_copies();
        land(stage.barrier, 1usize);

        landing = stage.barrier + 16;
        index += 2;
        slot.advance();
    }
    if begin < end {
        land(landing, 0usize);
    }
}

/// Starts copying the keys or values (`source`) of an entry into half of a stage, zeros from row
/// `valid` on.
#[cube]
fn copy_half<E: Float>(
    source: &[E],
    tile: &QueryTile,
    entry: u32,
    valid: u32,
    stage: u32,
    #[comptime] half: u32,
    #[comptime] head_dim: usize,
) {
    let unit = UNIT_POS_X % COPYING as u32;
    let row = tile.first_key + u64::cast_from((entry >> 1) * TILE_ROWS as u32);
    let from = global_address::<E>(source) + row * comptime!(2 * head_dim as u64);
    copy_tile(from, stage, half, unit, valid, entry, head_dim);
}
