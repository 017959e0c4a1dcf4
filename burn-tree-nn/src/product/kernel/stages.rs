//! The stages in shared memory and their barriers.

use burn_tree_kit::cube::warpgroup::*;
use cubecl::prelude::*;

use super::config::{ProductConfig, STAGE_BARRIER_BYTES, STAGE_BYTES};

/// A stage as it is used for one step.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Stage {
    /// The address of its operands.
    pub operands: u32,
    /// The barrier that counts bytes.
    pub filled: u32,
    /// The barrier that counts warpgroups.
    pub emptied: u32,
    /// Parity of the phase in which it is filled for this step.
    pub parity: u32,
}

/// The stage of step number `step` of a cube.
#[cube]
pub(super) fn stage_of(shared: u32, step: u32, #[comptime] config: ProductConfig) -> Stage {
    let stages = comptime!(config.stages() as u32);
    let index = step % stages;
    let filled = shared
        + comptime!(config.barriers_at() as u32)
        + index * comptime!(STAGE_BARRIER_BYTES as u32);
    Stage {
        operands: shared + index * comptime!(STAGE_BYTES as u32),
        filled,
        emptied: filled + BARRIER_BYTES as u32,
        parity: step / stages % 2,
    }
}

/// Initialises the barriers. One unit does it, before a `sync_cube`.
#[cube]
pub(super) fn init_stages(barriers: u32, #[comptime] config: ProductConfig) {
    #[unroll]
    for stage in 0..comptime!(config.stages()) {
        let filled = barriers + comptime!((stage * STAGE_BARRIER_BYTES) as u32);
        init_barrier(filled, 1usize);
        init_barrier(filled + BARRIER_BYTES as u32, 2usize);
    }
    fence_barriers();
}

/// For the copying unit: waits until the stage is empty, and lets its barrier expect `bytes`.
#[cube]
pub(super) fn begin_filling(stage: &Stage, #[comptime] bytes: usize) {
    // The phase before the first one counts as ended.
    wait_barrier(stage.emptied, stage.parity ^ 1);
    arrive_expecting(stage.filled, bytes);
}

/// For a warpgroup: says that it has read the stage.
#[cube]
pub(super) fn release(stage: &Stage) {
    if UNIT_POS_X % WARPGROUP as u32 == 0 {
        arrive(stage.emptied);
    }
}
