//! Barriers in shared memory that count arrivals and bytes of bulk copies (`mbarrier`), by their
//! 32-bit addresses, and named barriers between some planes of a cube.

use cubecl::prelude::*;

use crate::cube::matrix::read;

/// Bytes of a barrier in shared memory.
pub const BARRIER_BYTES: usize = 8;

/// Failed attempts after which a wait ends the kernel with an error. An attempt takes 20 cycles or
/// more, so this is over a second: a kernel with a wrong phase fails instead of hanging.
pub(super) const ATTEMPTS: u32 = 1 << 27;

/// Makes the 8 bytes at `barrier` a barrier whose phases end after `arrivals` arrivals. One unit
/// does it, before [`fence_barriers()`] and a `sync_cube`.
#[cube]
pub fn init_barrier(barrier: u32, #[comptime] arrivals: usize) {
    gpu_asm!(
        "mbarrier.init.shared.b64 [{barrier}], {arrivals};",
        barrier = in(_) read::<u32>(barrier), arrivals = const arrivals,
    );
}

/// Makes barriers that this unit initialised visible to bulk copies.
#[cube]
pub fn fence_barriers() {
    gpu_asm!("fence.mbarrier_init.release.cluster;");
}

/// Arrives at a barrier.
#[cube]
pub fn arrive(barrier: u32) {
    gpu_asm!(
        "{{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [{barrier}]; }}",
        barrier = in(_) read::<u32>(barrier),
    );
}

/// Arrives at a barrier and lets its phase wait for `bytes` bytes of bulk copies.
#[cube]
pub fn arrive_expecting(barrier: u32, #[comptime] bytes: usize) {
    gpu_asm!(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {bytes};",
        barrier = in(_) read::<u32>(barrier), bytes = const bytes,
    );
}

/// Waits for the end of a barrier's phase: of its first, third, .. if `parity` is 0, of its second,
/// fourth, .. if 1. What units wrote and copied before they arrived is visible afterwards. Traps if
/// the phase does not end.
#[cube]
pub fn wait_barrier(barrier: u32, parity: u32) {
    gpu_asm!(
        "{{ .reg .pred ended, late; .reg .u32 attempts; mov.u32 attempts, 0; again: ",
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [{barrier}], {parity}; @ended bra done; ",
        "add.u32 attempts, attempts, 1; setp.gt.u32 late, attempts, {limit}; @late trap; ",
        "bra again; done: }}",
        barrier = in(_) read::<u32>(barrier), parity = in(_) read::<u32>(parity),
        limit = const ATTEMPTS,
    );
}

/// Waits until `units` units are at the named barrier `number` (1 to 15). What they wrote to shared
/// memory before is visible afterwards.
#[cube]
pub fn wait_for_units(number: u32, #[comptime] units: usize) {
    gpu_asm!("bar.sync {number}, {units};", number = in(_) read::<u32>(number), units = const units);
}
