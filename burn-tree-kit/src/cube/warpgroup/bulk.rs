//! Bulk copies between global and shared memory (compute capability 9.0): boxes of tensors that a
//! tensor map describes (`cp.async.bulk.tensor`), and plain bytes. One unit starts a copy; a barrier
//! counts the bytes that arrive in shared memory, groups count stores to global memory.

use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::tensor_map_address;

use burn_cubecl::tensor::CubeTensor;

use super::PANEL_COLUMNS;
use super::barrier::ATTEMPTS;
use crate::cube::matrix::{Accumulator, read};

/// Describes a matrix of 16-bit numbers for copies of boxes of `rows` rows and one panel of columns.
/// In shared memory, a box has the 128-byte swizzle that matrix products undo. Parts of a box
/// outside of the matrix are read as zeros and not written.
///
/// The rows must start at multiples of 16 bytes, and the columns must be contiguous.
pub fn panel_map(matrix: &CubeTensor, rows: usize, element: ElemType) -> TensorMapArg<Tiled> {
    let binding = matrix.clone().into_tensor_arg();
    TensorMapArg::new(
        TiledArgs {
            tile_size: [rows, PANEL_COLUMNS].into(),
        },
        binding,
        element,
    )
    .with_swizzle(TensorMapSwizzle::B128)
    .with_prefetch(TensorMapPrefetch::B256)
}

/// The address of a tensor map, as copies take it.
#[cube]
pub fn map_address<E: Float>(map: &TensorMap<E, Tiled>) -> u64 {
    tensor_map_address::<E, Tiled>(map)
}

/// Starts copying the box of a tensor map that begins at `column` and `row` to shared memory.
#[cube]
pub fn load_box(map: u64, column: u32, row: u32, shared: u32, barrier: u32) {
    gpu_asm!(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes ",
        "[{to}], [{map}, {{{column}, {row}}}], [{barrier}];",
        to = in(_) read::<u32>(shared), map = in(_) read::<u64>(map),
        column = in(_) read::<u32>(column), row = in(_) read::<u32>(row),
        barrier = in(_) read::<u32>(barrier),
    );
}

/// Starts copying a box in shared memory to the place in a tensor map that begins at `column` and
/// `row`.
#[cube]
pub fn store_box(map: u64, column: u32, row: u32, shared: u32) {
    gpu_asm!(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [{map}, {{{column}, {row}}}], [{from}];",
        map = in(_) read::<u64>(map), column = in(_) read::<u32>(column),
        row = in(_) read::<u32>(row), from = in(_) read::<u32>(shared),
    );
}

/// Starts copying `bytes` bytes from global to shared memory.
#[cube]
pub fn load_bytes(global: u64, shared: u32, barrier: u32, #[comptime] bytes: usize) {
    gpu_asm!(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{from}], {bytes}, [{barrier}];",
        to = in(_) read::<u32>(shared), from = in(_) read::<u64>(global), bytes = const bytes,
        barrier = in(_) read::<u32>(barrier),
    );
}

/// Makes one group of the stores that this unit started since its last group.
#[cube]
pub fn commit_stores() {
    gpu_asm!("cp.async.bulk.commit_group;");
}

/// Waits until all stores of this unit have read shared memory, which may then be overwritten.
#[cube]
pub fn wait_stores_read() {
    gpu_asm!("cp.async.bulk.wait_group.read 0;");
}

/// Orders what this unit wrote or saw written to memory before the bulk copies that it starts
/// afterwards.
#[cube]
pub fn fence_bulk_copies() {
    gpu_asm!("fence.proxy.async;");
}

/// Sets a flag in global memory: who sees it with [`take_flag()`] sees what this unit wrote, and what
/// it saw written, before.
#[cube]
pub fn set_flag(address: u64) {
    gpu_asm!(
        "fence.acq_rel.gpu; st.release.gpu.global.u32 [{address}], 1;",
        address = in(_) read::<u64>(address),
    );
}

/// Waits for a flag of another cube, then resets it. Traps if it is not set.
#[cube]
pub fn take_flag(address: u64) {
    gpu_asm!(
        "{{ .reg .pred set, late; .reg .u32 flag, attempts; mov.u32 attempts, 0; again: ",
        "ld.acquire.gpu.global.u32 flag, [{address}]; setp.ne.u32 set, flag, 0; @set bra done; ",
        "add.u32 attempts, attempts, 1; setp.gt.u32 late, attempts, {limit}; @late trap; ",
        "bra again; done: st.global.u32 [{address}], 0; }}",
        address = in(_) read::<u64>(address), limit = const ATTEMPTS,
    );
}

/// Orders what this unit wrote to shared memory before the bulk copies that units start after a
/// barrier.
#[cube]
pub fn fence_shared_copies() {
    gpu_asm!("fence.proxy.async.shared::cta;");
}

/// Reads four f32 numbers of shared memory at `address + offset`, a multiple of 16.
#[cube]
pub fn load_sums(address: u32, #[comptime] offset: usize) -> Accumulator {
    let sums: Accumulator;
    gpu_asm!(
        "ld.shared.v4.f32 {sums}, [{address}+{offset}];",
        sums = out(_) sums, address = in(_) read::<u32>(address), options(readonly),
    );
    sums
}

/// Writes two f32 numbers to global memory at `address + offset`, a multiple of 8.
#[cube]
pub fn store_pair_global(address: u64, #[comptime] offset: usize, first: f32, second: f32) {
    gpu_asm!(
        "st.global.v2.f32 [{address}+{offset}], {{{first}, {second}}};",
        address = in(_) read::<u64>(address), first = in(_) read::<f32>(first),
        second = in(_) read::<f32>(second),
    );
}

/// Writes four f32 numbers to global memory at `address + offset`, a multiple of 16.
#[cube]
pub fn store_four_global(
    address: u64,
    #[comptime] offset: usize,
    first: f32,
    second: f32,
    third: f32,
    fourth: f32,
) {
    gpu_asm!(
        "st.global.v4.f32 [{address}+{offset}], {{{first}, {second}, {third}, {fourth}}};",
        address = in(_) read::<u64>(address), first = in(_) read::<f32>(first),
        second = in(_) read::<f32>(second), third = in(_) read::<f32>(third),
        fourth = in(_) read::<f32>(fourth),
    );
}
