//! Operands in registers, and their matrix products (`ldmatrix`, `mma.sync`).

use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;
use cubecl::{self, intrinsic};

use super::{Accumulator, Fragment, read};

/// Loads a 16 x 16 block of 16-bit numbers from shared memory (`ldmatrix`). `address` is that of
/// the tile plus the offset of the lane; `offset` is that of the block in bytes.
#[cube]
pub fn load_block(
    address: u32,
    #[comptime] offset: usize,
    #[comptime] transposed: bool,
) -> Fragment {
    let modifier = comptime!(if transposed { ".trans" } else { "" });
    let fragment: Fragment;
    gpu_asm!(
        "ldmatrix.sync.aligned.m8n8.x4{modifier}.shared.b16 {fragment}, [{address}+{offset}];",
        fragment = out(_) fragment, address = in(_) read::<u32>(address), options(readonly),
    );
    fragment
}

/// `sum + left * right` for a 16 x 16 left operand and a 16 x 8 right operand (`mma.sync`).
#[cube]
pub fn multiply_add<E: Float>(
    left: Fragment,
    right_0: u32,
    right_1: u32,
    sum: Accumulator,
) -> Accumulator {
    let element = ptx_type::<E>().comptime();
    let result: Accumulator;
    gpu_asm!(
        "mma.sync.aligned.m16n8k16.row.col.f32.{element}.{element}.f32 ",
        "{result}, {left}, {{{right_0}, {right_1}}}, {sum};",
        left = in(_) read::<Fragment>(left), right_0 = in(_) read::<u32>(right_0), right_1 = in(_) read::<u32>(right_1), sum = in(_) read::<Accumulator>(sum),
        result = out(_) result, options(pure, nomem),
    );
    result
}

/// Two numbers rounded to `E`, f16 or bf16; `low` is in the lower half.
#[cube]
pub fn pack<E: Float>(low: f32, high: f32) -> u32 {
    let element = ptx_type::<E>().comptime();
    let packed: u32;
    gpu_asm!(
        "cvt.rn.{element}x2.f32 {packed}, {high}, {low};",
        low = in(_) read::<f32>(low), high = in(_) read::<f32>(high), packed = out(_) packed, options(pure, nomem),
    );
    packed
}

/// Two neighbouring 16 x 8 tiles of sums, rounded to `E`, as one 16 x 16 left operand.
#[cube]
pub fn pack_left<E: Float>(first: Accumulator, second: Accumulator) -> Fragment {
    let mut fragment = Fragment::empty();
    fragment.insert(
        0usize,
        pack::<E>(first.extract(0usize), first.extract(1usize)),
    );
    fragment.insert(
        1usize,
        pack::<E>(first.extract(2usize), first.extract(3usize)),
    );
    fragment.insert(
        2usize,
        pack::<E>(second.extract(0usize), second.extract(1usize)),
    );
    fragment.insert(
        3usize,
        pack::<E>(second.extract(2usize), second.extract(3usize)),
    );
    fragment
}

/// The lower of two packed numbers of type `E`.
#[cube]
pub fn unpack_low<E: Float>(packed: u32) -> f32 {
    let element = ptx_type::<E>().comptime();
    if comptime!(element == "bf16") {
        f32::reinterpret(packed << 16)
    } else {
        let number: f32;
        gpu_asm!(
            "{{ .reg .b16 low, high; mov.b32 {{low, high}}, {packed}; cvt.f32.f16 {number}, low; }}",
            packed = in(_) read::<u32>(packed), number = out(_) number, options(pure, nomem),
        );
        number
    }
}

/// The upper of two packed numbers of type `E`.
#[cube]
pub fn unpack_high<E: Float>(packed: u32) -> f32 {
    let element = ptx_type::<E>().comptime();
    if comptime!(element == "bf16") {
        f32::reinterpret(packed & 0xffff_0000)
    } else {
        let number: f32;
        gpu_asm!(
            "{{ .reg .b16 low, high; mov.b32 {{low, high}}, {packed}; cvt.f32.f16 {number}, high; }}",
            packed = in(_) read::<u32>(packed), number = out(_) number, options(pure, nomem),
        );
        number
    }
}

/// Name of the type `E` in PTX: `f16` or `bf16`.
#[cube]
pub fn ptx_type<E: Float>() -> comptime_type!(&'static str) {
    intrinsic!(|scope| {
        match E::elem_type(scope) {
            ElemType::Float(FloatKind::F16) => "f16",
            ElemType::Float(FloatKind::BF16) => "bf16",
            other => panic!("no matrix instruction for {other:?}"),
        }
    })
}
