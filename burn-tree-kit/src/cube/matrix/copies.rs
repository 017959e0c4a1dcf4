//! Asynchronous copies from global to shared memory (`cp.async`).

use cubecl::prelude::*;

use super::read;

/// Starts copying 16 bytes from global to shared memory; both addresses are multiples of 16.
#[cube]
pub fn copy_chunk(
    global: u64,
    #[comptime] global_offset: usize,
    shared: u32,
    #[comptime] shared_offset: usize,
) {
    gpu_asm!(
        "cp.async.cg.shared.global [{to}+{shared_offset}], [{from}+{global_offset}], 16;",
        to = in(_) read::<u32>(shared), from = in(_) read::<u64>(global),
    );
}

/// As [`copy_chunk()`], with zeros instead of the source unless `valid`; the source of an invalid
/// copy is not read.
#[cube]
pub fn copy_chunk_or_zero(
    global: u64,
    #[comptime] global_offset: usize,
    shared: u32,
    #[comptime] shared_offset: usize,
    valid: bool,
) {
    let size = select(valid, 16u32, 0u32);
    gpu_asm!(
        "cp.async.cg.shared.global [{to}+{shared_offset}], [{from}+{global_offset}], 16, {size};",
        to = in(_) read::<u32>(shared), from = in(_) read::<u64>(global), size = in(_) read::<u32>(size),
    );
}

/// As [`copy_chunk_or_zero()`] for 4 bytes.
#[cube]
pub fn copy_word_or_zero(global: u64, shared: u32, valid: bool) {
    let size = select(valid, 4u32, 0u32);
    gpu_asm!(
        "cp.async.ca.shared.global [{to}], [{from}], 4, {size};",
        to = in(_) read::<u32>(shared), from = in(_) read::<u64>(global), size = in(_) read::<u32>(size),
    );
}

/// Closes the group of the copies that this unit started since the last group.
#[cube]
pub fn commit_copies() {
    gpu_asm!("cp.async.commit_group;");
}

/// Waits until at most the `pending` youngest groups of this unit are in flight; copies that no
/// [`commit_copies()`] has closed into a group are not waited for. Others see the copies after a
/// `sync_cube`.
#[cube]
pub fn wait_copies(#[comptime] pending: usize) {
    gpu_asm!("cp.async.wait_group {pending};", pending = const pending);
}
