//! Barriers of the matrix-instruction kernels, by their addresses in shared memory: those that
//! count asynchronous copies (`mbarrier`, 8 bytes each) and the named ones between some planes.

use cubecl::prelude::*;

use burn_tree_kit::cube::matrix::read;

/// Bytes of a barrier in shared memory.
pub(crate) const BARRIER_BYTES: usize = 8;

/// Makes the 8 bytes at `barrier` a barrier whose phases end after `arrivals` arrivals. One unit
/// does it, before a `sync_cube`.
#[cube]
pub(crate) fn init_barrier(barrier: u32, #[comptime] arrivals: usize) {
    gpu_asm!(
        "mbarrier.init.shared.b64 [{barrier}], {arrivals};",
        barrier = in(_) read::<u32>(barrier), arrivals = const arrivals,
    );
}

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

/// Arrives at a barrier.
#[cube]
pub(crate) fn arrive(barrier: u32) {
    gpu_asm!(
        "{{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [{barrier}]; }}",
        barrier = in(_) read::<u32>(barrier),
    );
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

/// Waits until `units` units, those of this call and of [`signal_units`], are at the named barrier
/// `number` (1 to 15). What they wrote to shared memory before is visible afterwards.
#[cube]
pub(crate) fn wait_for_units(number: u32, #[comptime] units: usize) {
    gpu_asm!("bar.sync {number}, {units};", number = in(_) read::<u32>(number), units = const units);
}

/// Counts at the named barrier `number` without waiting.
#[cube]
pub(crate) fn signal_units(number: u32, #[comptime] units: usize) {
    gpu_asm!("bar.arrive {number}, {units};", number = in(_) read::<u32>(number), units = const units);
}
