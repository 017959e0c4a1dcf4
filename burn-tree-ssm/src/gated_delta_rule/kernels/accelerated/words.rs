//! Numbers of f32 and words of 4 bytes in shared and global memory.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

/// Reads an f32 number of shared memory.
#[cube]
pub(crate) fn load_number(address: u32, #[comptime] offset: usize) -> f32 {
    let number: f32;
    gpu_asm!(
        "ld.shared.f32 {number}, [{address}+{offset}];",
        number = out(_) number, address = in(_) read::<u32>(address), options(readonly),
    );
    number
}

/// Writes an f32 number of shared memory.
#[cube]
pub(crate) fn store_number(address: u32, #[comptime] offset: usize, number: f32) {
    gpu_asm!(
        "st.shared.f32 [{address}+{offset}], {number};",
        address = in(_) read::<u32>(address), number = in(_) read::<f32>(number),
    );
}

/// Reads a word of shared memory.
#[cube]
pub(crate) fn load_word(address: u32, #[comptime] offset: usize) -> u32 {
    let word: u32;
    gpu_asm!(
        "ld.shared.b32 {word}, [{address}+{offset}];",
        word = out(_) word, address = in(_) read::<u32>(address), options(readonly),
    );
    word
}

/// Reads a word of global memory that this launch does not write.
#[cube]
pub(crate) fn load_word_global(address: u64, #[comptime] offset: usize) -> u32 {
    let word: u32;
    gpu_asm!(
        "ld.global.nc.b32 {word}, [{address}+{offset}];",
        word = out(_) word, address = in(_) read::<u64>(address), options(readonly),
    );
    word
}

/// Writes a word of global memory.
#[cube]
pub(crate) fn store_word_global(address: u64, #[comptime] offset: usize, word: u32) {
    gpu_asm!(
        "st.global.b32 [{address}+{offset}], {word};",
        address = in(_) read::<u64>(address), word = in(_) read::<u32>(word),
    );
}
