//! Functions of one or two instructions, and exchanges between the lanes of a plane.

use cubecl::prelude::*;

use super::read;

/// `2^x` in one instruction, with a relative error of about 2^-22.
#[cube]
pub fn exp2(x: f32) -> f32 {
    let result: f32;
    gpu_asm!(
        "ex2.approx.ftz.f32 {result}, {x};",
        x = in(_) read::<f32>(x), result = out(_) result, options(pure, nomem),
    );
    result
}

/// `log2(x)` in one instruction, with an absolute error of about 2^-22.
#[cube]
pub fn log2(x: f32) -> f32 {
    let result: f32;
    gpu_asm!(
        "lg2.approx.ftz.f32 {result}, {x};",
        x = in(_) read::<f32>(x), result = out(_) result, options(pure, nomem),
    );
    result
}

/// `1 / x` in one instruction, with a relative error of about 2^-23.
#[cube]
pub fn reciprocal(x: f32) -> f32 {
    let result: f32;
    gpu_asm!(
        "rcp.approx.ftz.f32 {result}, {x};",
        x = in(_) read::<f32>(x), result = out(_) result, options(pure, nomem),
    );
    result
}

/// `tanh(x)` with an absolute error of about 2^-22 (`tanh.approx` has 2^-11).
#[cube]
pub fn tanh(x: f32) -> f32 {
    // 2 log2(e): e^(2x) as a power of two.
    let e = exp2(x * 2.885_39);
    1.0 - 2.0 * reciprocal(e + 1.0)
}

/// The value of the lane with the index `lane ^ mask`.
#[cube]
pub fn shuffle_xor(value: f32, #[comptime] mask: u32) -> f32 {
    let result: f32;
    gpu_asm!(
        "shfl.sync.bfly.b32 {result}, {value}, {mask}, 31, 0xffffffff;",
        value = in(_) read::<f32>(value), mask = const mask, result = out(_) result, options(nomem),
    );
    result
}

/// Largest value of the four lanes that share a row of an accumulator.
#[cube]
pub fn row_max(value: f32) -> f32 {
    let value = max(value, shuffle_xor(value, 1u32));
    max(value, shuffle_xor(value, 2u32))
}

/// Sum over the four lanes that share a row of an accumulator.
#[cube]
pub fn row_sum(value: f32) -> f32 {
    let value = value + shuffle_xor(value, 1u32);
    value + shuffle_xor(value, 2u32)
}

/// Whether `condition` is true for any lane of the plane; all lanes get the same result.
#[cube]
pub fn plane_agrees_any(condition: bool) -> bool {
    let flag = u32::cast_from(condition);
    let any: u32;
    gpu_asm!(
        "{{ .reg .pred p, q; setp.ne.u32 p, {flag}, 0; vote.sync.any.pred q, p, 0xffffffff; selp.u32 {any}, 1, 0, q; }}",
        flag = in(_) read::<u32>(flag), any = out(_) any, options(nomem),
    );
    any != 0
}
