//! Shared blocks of the matrix-instruction kernels: padded tiles in shared memory, asynchronous
//! copies into them, fragments out of them, and the products.
//!
//! Everything here is one or two PTX instructions of NVIDIA GPUs from compute capability 8.0 on.
//! Shared memory is addressed by its 32-bit address plus compile-time offsets in bytes, which
//! become immediates of the instructions: the inner loops hold no address arithmetic.
//!
//! # Layouts
//!
//! A tile holds rows of `head_dim` 16-bit numbers, one after the other, each followed by 16 bytes
//! of padding ([`row_stride`]). The stride is an odd number of 16-byte chunks, so the eight
//! rows that one phase of `ldmatrix` reads lie in different banks.
//!
//! With `g = lane / 4` and `t = lane % 4`, a lane of a plane holds
//! * of an accumulator (16 x 8): `(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)`,
//! * of a left operand (16 x 16): the pairs from `(g, 2t), (g + 8, 2t), (g, 2t + 8),
//!   (g + 8, 2t + 8)`,
//! * of a right operand (16 x 8): the pairs down the columns from `(2t, g), (2t + 8, g)`.
//!
//! So two neighbouring accumulators are, converted in place, one left operand ([`pack_left`]).

use cubecl::prelude::*;
use cubecl::{self, intrinsic, ir::ElemType, ir::FloatKind};

/// Units of a plane; the fragment layouts are made for it.
pub(crate) const PLANE: usize = 32;
/// Bytes moved by one asynchronous copy and addressed by one lane of `ldmatrix`.
pub(crate) const CHUNK: usize = 16;

/// Four registers of two 16-bit numbers: a left operand, or two right operands.
pub(crate) type Fragment = Vector<u32, Const<4>>;
/// Four f32 numbers of a 16 x 8 tile of sums.
pub(crate) type Accumulator = Vector<f32, Const<4>>;

/// Bytes from row to row of a tile in shared memory.
pub(crate) const fn row_stride(head_dim: usize) -> usize {
    2 * head_dim + CHUNK
}

/// Bytes of a tile of `rows` rows in shared memory.
pub(crate) const fn tile_bytes(rows: usize, head_dim: usize) -> usize {
    rows * row_stride(head_dim)
}

/// The 32-bit address of the start of shared memory.
#[cube]
pub(crate) fn shared_address(memory: &[u32]) -> u32 {
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
pub(crate) fn global_address<E: CubePrimitive>(tensor: &[E]) -> u64 {
    let pointer = tensor.as_ptr();
    let address: u64;
    gpu_asm!(
        "cvta.to.global.u64 {address}, {pointer};",
        pointer = in(_) pointer, address = out(_) address, options(nomem),
    );
    address
}

/// The value of an expression: inline PTX would get the address of a mutable variable.
#[cube]
pub(crate) fn read<T: CubePrimitive>(value: T) -> T {
    intrinsic!(|scope| value.read_value(scope).into())
}

// Asynchronous copies

/// Starts copying 16 bytes from global to shared memory; both addresses are multiples of 16.
#[cube]
pub(crate) fn copy_chunk(
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

/// As [`copy_chunk`], with zeros instead of the source unless `valid`; the source of an invalid
/// copy is not read.
#[cube]
pub(crate) fn copy_chunk_or_zero(
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

/// As [`copy_chunk_or_zero`] for 4 bytes.
#[cube]
pub(crate) fn copy_word_or_zero(global: u64, shared: u32, valid: bool) {
    let size = select(valid, 4u32, 0u32);
    gpu_asm!(
        "cp.async.ca.shared.global [{to}], [{from}], 4, {size};",
        to = in(_) read::<u32>(shared), from = in(_) read::<u64>(global), size = in(_) read::<u32>(size),
    );
}

/// Closes the group of the copies that this unit started since the last group.
#[cube]
pub(crate) fn commit_copies() {
    gpu_asm!("cp.async.commit_group;");
}

/// Waits until at most the `pending` youngest groups of this unit are in flight; copies that no
/// [`commit_copies`] has closed into a group are not waited for. Others see the copies after a
/// `sync_cube`.
#[cube]
pub(crate) fn wait_copies(#[comptime] pending: usize) {
    gpu_asm!("cp.async.wait_group {pending};", pending = const pending);
}

/// Starts copying `rows` contiguous rows of `head_dim` 16-bit numbers from `global` (the address of
/// the first row) into the tile at `shared`, by `units` units of which this is number `unit`.
/// With `checked`, rows from `valid_rows` on become zero; otherwise all are valid.
#[cube]
pub(crate) fn copy_rows(
    global: u64,
    shared: u32,
    unit: u32,
    valid_rows: u32,
    #[comptime] rows: usize,
    #[comptime] head_dim: usize,
    #[comptime] units: usize,
    #[comptime] checked: bool,
) {
    let row_chunks = comptime!(2 * head_dim / CHUNK);
    let chunks = comptime!(rows * row_chunks);
    let passes = comptime!(chunks.div_ceil(units));
    let from = global + u64::cast_from(unit * CHUNK as u32);
    if comptime!(units.is_multiple_of(row_chunks) && chunks.is_multiple_of(units)) {
        // Every pass is a whole number of rows further: offsets are constants.
        let row = unit / row_chunks as u32;
        let to = shared + unit * CHUNK as u32 + row * CHUNK as u32;
        #[unroll]
        for pass in 0..passes {
            let global_offset = comptime!(pass * units * CHUNK);
            let shared_offset = comptime!(pass * units / row_chunks * row_stride(head_dim));
            if comptime!(checked) {
                let row_of_pass = comptime!((pass * units / row_chunks) as u32);
                let valid = row + row_of_pass < valid_rows;
                copy_chunk_or_zero(from, global_offset, to, shared_offset, valid);
            } else {
                copy_chunk(from, global_offset, to, shared_offset);
            }
        }
    } else {
        #[unroll]
        for pass in 0..passes {
            let global_offset = comptime!(pass * units * CHUNK);
            let chunk = unit + comptime!((pass * units) as u32);
            let row = chunk / row_chunks as u32;
            let to = shared + chunk * CHUNK as u32 + row * CHUNK as u32;
            if comptime!((pass + 1) * units <= chunks) {
                copy_chunk_or_zero(from, global_offset, to, 0usize, row < valid_rows);
            } else if chunk < comptime!(chunks as u32) {
                copy_chunk_or_zero(from, global_offset, to, 0usize, row < valid_rows);
            }
        }
    }
}

// Fragments

/// What a lane adds to the address of a 16 x 16 block of a tile to load it with [`load_block`] as
/// * the left operand whose rows are the tile's rows, or
/// * transposed, the right operands whose columns are the tile's columns 0-7 and 8-15 (registers 0
///   and 1, 2 and 3): sums run over the tile's rows.
#[cube]
pub(crate) fn lane_offset_by_rows(lane: u32, #[comptime] head_dim: usize) -> u32 {
    let stride = comptime!(row_stride(head_dim) as u32);
    (lane % 16) * stride + (lane / 16) * CHUNK as u32
}

/// What a lane adds to the address of a 16 x 16 block of a tile to load it with [`load_block`] as
/// * the right operands whose columns are the tile's rows 0-7 and 8-15 (registers 0 and 1, 2 and
///   3): sums run over the tile's columns, or
/// * transposed, the left operand whose rows are the tile's columns.
#[cube]
pub(crate) fn lane_offset_by_columns(lane: u32, #[comptime] head_dim: usize) -> u32 {
    let stride = comptime!(row_stride(head_dim) as u32);
    ((lane / 16) * 8 + lane % 8) * stride + (lane / 8 % 2) * CHUNK as u32
}

/// Loads a 16 x 16 block of 16-bit numbers from shared memory (`ldmatrix`): `address` is the
/// tile's plus the lane's offset, `offset` the block's.
#[cube]
pub(crate) fn load_block(
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
pub(crate) fn multiply_add<E: Float>(
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

/// Two numbers rounded to 16 bits, `low` in the lower half.
#[cube]
pub(crate) fn pack<E: Float>(low: f32, high: f32) -> u32 {
    let element = ptx_type::<E>().comptime();
    let packed: u32;
    gpu_asm!(
        "cvt.rn.{element}x2.f32 {packed}, {high}, {low};",
        low = in(_) read::<f32>(low), high = in(_) read::<f32>(high), packed = out(_) packed, options(pure, nomem),
    );
    packed
}

/// Two neighbouring 16 x 8 tiles of sums as one 16 x 16 left operand.
#[cube]
pub(crate) fn pack_left<E: Float>(first: Accumulator, second: Accumulator) -> Fragment {
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

/// Name of a 16-bit float type in PTX.
#[cube]
pub(crate) fn ptx_type<E: Float>() -> comptime_type!(&'static str) {
    intrinsic!(|scope| {
        match E::elem_type(scope) {
            ElemType::Float(FloatKind::F16) => "f16",
            ElemType::Float(FloatKind::BF16) => "bf16",
            other => panic!("no matrix instruction for {other:?}"),
        }
    })
}

// Arithmetic

/// `2^x` in one instruction, with a relative error of about 2^-22.
#[cube]
pub(crate) fn exp2(x: f32) -> f32 {
    let result: f32;
    gpu_asm!(
        "ex2.approx.ftz.f32 {result}, {x};",
        x = in(_) read::<f32>(x), result = out(_) result, options(pure, nomem),
    );
    result
}

/// `log2(x)` in one instruction, with an absolute error of about 2^-22.
#[cube]
pub(crate) fn log2(x: f32) -> f32 {
    let result: f32;
    gpu_asm!(
        "lg2.approx.ftz.f32 {result}, {x};",
        x = in(_) read::<f32>(x), result = out(_) result, options(pure, nomem),
    );
    result
}

/// `1 / x` in one instruction, with a relative error of about 2^-23.
#[cube]
pub(crate) fn reciprocal(x: f32) -> f32 {
    let result: f32;
    gpu_asm!(
        "rcp.approx.ftz.f32 {result}, {x};",
        x = in(_) read::<f32>(x), result = out(_) result, options(pure, nomem),
    );
    result
}

/// `tanh(x)` with an absolute error of about 2^-22 (`tanh.approx` has 2^-11).
#[cube]
pub(crate) fn tanh(x: f32) -> f32 {
    // 2 log2(e): e^(2x) as a power of two.
    let e = exp2(x * 2.885_39);
    1.0 - 2.0 * reciprocal(e + 1.0)
}

/// The value of the lane whose number differs in the bits of `mask`.
#[cube]
pub(crate) fn shuffle_xor(value: f32, #[comptime] mask: u32) -> f32 {
    let result: f32;
    gpu_asm!(
        "shfl.sync.bfly.b32 {result}, {value}, {mask}, 31, 0xffffffff;",
        value = in(_) read::<f32>(value), mask = const mask, result = out(_) result, options(nomem),
    );
    result
}

/// Largest value of the four lanes that hold a row of an accumulator.
#[cube]
pub(crate) fn row_max(value: f32) -> f32 {
    let value = max(value, shuffle_xor(value, 1u32));
    max(value, shuffle_xor(value, 2u32))
}

/// Sum over the four lanes that hold a row of an accumulator.
#[cube]
pub(crate) fn row_sum(value: f32) -> f32 {
    let value = value + shuffle_xor(value, 1u32);
    value + shuffle_xor(value, 2u32)
}

// Words of shared and global memory

/// Reads two neighbouring words of shared memory; the address is a multiple of 8.
#[cube]
pub(crate) fn load_pair(address: u32, #[comptime] offset: usize) -> Vector<u32, Const<2>> {
    let pair: Vector<u32, Const<2>>;
    gpu_asm!(
        "ld.shared.v2.b32 {pair}, [{address}+{offset}];",
        pair = out(_) pair, address = in(_) read::<u32>(address), options(readonly),
    );
    pair
}

/// Writes one word of shared memory.
#[cube]
pub(crate) fn store_word(address: u32, #[comptime] offset: usize, word: u32) {
    gpu_asm!(
        "st.shared.b32 [{address}+{offset}], {word};",
        address = in(_) read::<u32>(address), word = in(_) read::<u32>(word),
    );
}

/// Reads 16 bytes of shared memory; the address is a multiple of 16.
#[cube]
pub(crate) fn load_chunk(address: u32, #[comptime] offset: usize) -> Fragment {
    let chunk: Fragment;
    gpu_asm!(
        "ld.shared.v4.b32 {chunk}, [{address}+{offset}];",
        chunk = out(_) chunk, address = in(_) read::<u32>(address), options(readonly),
    );
    chunk
}

/// Writes 16 bytes of global memory; the address is a multiple of 16.
#[cube]
pub(crate) fn store_chunk_global(address: u64, chunk: Fragment) {
    gpu_asm!(
        "st.global.v4.b32 [{address}], {chunk};",
        address = in(_) read::<u64>(address), chunk = in(_) read::<Fragment>(chunk),
    );
}

/// Whether `condition` holds for any lane of the plane; the same for all of them.
#[cube]
pub(crate) fn plane_agrees_any(condition: bool) -> bool {
    let flag = u32::cast_from(condition);
    let any: u32;
    gpu_asm!(
        "{{ .reg .pred p, q; setp.ne.u32 p, {flag}, 0; vote.sync.any.pred q, p, 0xffffffff; selp.u32 {any}, 1, 0, q; }}",
        flag = in(_) read::<u32>(flag), any = out(_) any, options(nomem),
    );
    any != 0
}

/// The lower of two packed 16-bit numbers.
#[cube]
pub(crate) fn unpack_low<E: Float>(packed: u32) -> f32 {
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

/// The upper of two packed 16-bit numbers.
#[cube]
pub(crate) fn unpack_high<E: Float>(packed: u32) -> f32 {
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

/// Writes 16 bytes of shared memory; the address is a multiple of 16.
#[cube]
pub(crate) fn store_chunk(address: u32, #[comptime] offset: usize, chunk: Fragment) {
    gpu_asm!(
        "st.shared.v4.b32 [{address}+{offset}], {chunk};",
        address = in(_) read::<u32>(address), chunk = in(_) read::<Fragment>(chunk),
    );
}
