//! Loads and stores of words (4 bytes) and chunks (16 bytes). Addresses and offsets are in bytes.

use cubecl::prelude::*;

use super::{Fragment, read};

/// Reads two neighbouring words of shared memory at `address + offset`, a multiple of 8.
#[cube]
pub fn load_pair(address: u32, #[comptime] offset: usize) -> Vector<u32, Const<2>> {
    let pair: Vector<u32, Const<2>>;
    gpu_asm!(
        "ld.shared.v2.b32 {pair}, [{address}+{offset}];",
        pair = out(_) pair, address = in(_) read::<u32>(address), options(readonly),
    );
    pair
}

/// Writes one word of shared memory at `address + offset`, a multiple of 4.
#[cube]
pub fn store_word(address: u32, #[comptime] offset: usize, word: u32) {
    gpu_asm!(
        "st.shared.b32 [{address}+{offset}], {word};",
        address = in(_) read::<u32>(address), word = in(_) read::<u32>(word),
    );
}

/// Reads 16 bytes of shared memory at `address + offset`, a multiple of 16.
#[cube]
pub fn load_chunk(address: u32, #[comptime] offset: usize) -> Fragment {
    let chunk: Fragment;
    gpu_asm!(
        "ld.shared.v4.b32 {chunk}, [{address}+{offset}];",
        chunk = out(_) chunk, address = in(_) read::<u32>(address), options(readonly),
    );
    chunk
}

/// Writes 16 bytes of shared memory at `address + offset`, a multiple of 16.
#[cube]
pub fn store_chunk(address: u32, #[comptime] offset: usize, chunk: Fragment) {
    gpu_asm!(
        "st.shared.v4.b32 [{address}+{offset}], {chunk};",
        address = in(_) read::<u32>(address), chunk = in(_) read::<Fragment>(chunk),
    );
}

/// Writes 16 bytes of global memory at `address`, a multiple of 16.
#[cube]
pub fn store_chunk_global(address: u64, chunk: Fragment) {
    gpu_asm!(
        "st.global.v4.b32 [{address}], {chunk};",
        address = in(_) read::<u64>(address), chunk = in(_) read::<Fragment>(chunk),
    );
}
