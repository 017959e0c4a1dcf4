//! Barriers of the matrix-instruction kernels, by their addresses in shared memory: those that
//! count asynchronous copies (`mbarrier`, 8 bytes each) and the named ones between some planes.

use cubecl::prelude::*;

use burn_tree_kit::cube::matrix::read;
pub(crate) use burn_tree_kit::cube::warpgroup::{
    BARRIER_BYTES, arrive, init_barrier, wait_for_units,
};

/// Makes the barriers of two stages: at `filled` those that count the `units` units that copied, at
/// `emptied` those that count the `planes` planes that are done with a stage. One unit does it.
#[cube]
pub(crate) fn init_stage_barriers(
    filled: u32,
    emptied: u32,
    #[comptime] units: usize,
    #[comptime] planes: usize,
) {
    #[unroll]
    for slot in 0..2u32 {
        init_barrier(filled + slot * BARRIER_BYTES as u32, units);
        init_barrier(emptied + slot * BARRIER_BYTES as u32, planes);
    }
}

/// Arrives at a barrier once all asynchronous copies that this unit started before have landed.
#[cube]
pub(crate) fn arrive_after_copies(barrier: u32) {
    gpu_asm!(
        "cp.async.mbarrier.arrive.noinc.shared.b64 [{barrier}];",
        barrier = in(_) read::<u32>(barrier),
    );
}

/// Waits for the end of a barrier's phase: of its first, third, .. if `parity` is 0, of its second,
/// fourth, .. if 1. What units wrote and copied before they arrived is visible afterwards.
#[cube]
pub(crate) fn wait_barrier(barrier: u32, parity: u32) {
    gpu_asm!(
        "{{ .reg .pred ended; again: mbarrier.test_wait.parity.shared.b64 ended, [{barrier}], {parity}; @!ended bra again; }}",
        barrier = in(_) read::<u32>(barrier), parity = in(_) read::<u32>(parity),
    );
}

/// Counts at the named barrier `number` without waiting.
#[cube]
pub(crate) fn signal_units(number: u32, #[comptime] units: usize) {
    gpu_asm!("bar.arrive {number}, {units};", number = in(_) read::<u32>(number), units = const units);
}
