//! Asynchronous copies from global to shared memory (`cp.async`).

use cubecl::prelude::*;

use super::read;

/// Starts copying 16 bytes from global to shared memory. Both addresses, each with its offset in
/// bytes, are multiples of 16.
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

/// [`copy_chunk()`] if `valid`; otherwise writes zeros and does not read the source.
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

/// [`copy_chunk_or_zero()`] for 4 bytes, at multiples of 4.
#[cube]
pub fn copy_word_or_zero(global: u64, shared: u32, valid: bool) {
    let size = select(valid, 4u32, 0u32);
    gpu_asm!(
        "cp.async.ca.shared.global [{to}], [{from}], 4, {size};",
        to = in(_) read::<u32>(shared), from = in(_) read::<u64>(global), size = in(_) read::<u32>(size),
    );
}

/// Commits the copies that this unit started since its last group as one group.
#[cube]
pub fn commit_copies() {
    gpu_asm!("cp.async.commit_group;");
}

/// Waits until at most the `pending` youngest groups of this unit are in flight. The wait does not
/// cover copies that are not yet in a group ([`commit_copies()`]). Other units see the copies after
/// a `sync_cube`.
#[cube]
pub fn wait_copies(#[comptime] pending: usize) {
    gpu_asm!("cp.async.wait_group {pending};", pending = const pending);
}
