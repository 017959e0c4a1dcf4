//! Memory addresses for PTX instructions.

use cubecl::intrinsic;
use cubecl::prelude::*;

/// The 32-bit address of the start of shared memory.
#[cube]
pub fn shared_address(memory: &[u32]) -> u32 {
    let pointer = memory.as_ptr();
    let address: u32;
    gpu_asm!(
        "{{ .reg .u64 generic; cvta.to.shared.u64 generic, {pointer}; cvt.u32.u64 {address}, generic; }}",
        pointer = in(_) pointer, address = out(_) address, options(nomem),
    );
    address
}

/// The 64-bit address of the start of a tensor in global memory.
#[cube]
pub fn global_address<E: CubePrimitive>(tensor: &[E]) -> u64 {
    let pointer = tensor.as_ptr();
    let address: u64;
    gpu_asm!(
        "cvta.to.global.u64 {address}, {pointer};",
        pointer = in(_) pointer, address = out(_) address, options(nomem),
    );
    address
}

/// Copies `value`. Inline PTX needs the copy, because it would receive the address of a mutable
/// variable.
#[cube]
pub fn read<T: CubePrimitive>(value: T) -> T {
    intrinsic!(|scope| value.read_value(scope).into())
}
