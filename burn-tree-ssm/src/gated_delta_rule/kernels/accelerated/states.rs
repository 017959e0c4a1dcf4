//! Blocks of the kernels that walk along runs: a plane holds 16 value columns of a state in its
//! registers, transposed (`[16, DK]`), so planes need nothing of each other.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::arguments::RunLists;
use super::blocks::*;
use super::place::*;
use super::rows::*;
use super::words::*;

/// Starts copying, by one of the copying units, a window's decays from its entry, then those to its
/// last token.
#[cube]
pub(crate) fn copy_decays(
    decays: u64,
    part: u64,
    shared: u32,
    unit: u32,
    length: u32,
    #[comptime] config: PathConfig,
) {
    #[unroll]
    for pass in 0..comptime!(ROWS.div_ceil(config.copying())) {
        let row = unit + comptime!((pass * config.copying()) as u32);
        if row < ROWS as u32 {
            let from = decays + u64::cast_from(row * 4);
            copy_word_or_zero(from, shared + row * 4, row < length);
            let shared = shared + comptime!(4 * ROWS as u32);
            copy_word_or_zero(from + part, shared + row * 4, row < length);
        }
    }
}

/// A state of zeros.
#[cube]
pub(crate) fn zero_state(#[comptime] config: PathConfig) -> Array<Accumulator> {
    let mut state = Array::<Accumulator>::new(comptime!(config.key_dim / 8));
    clear(&mut state, comptime!(config.key_dim / 8));
    state
}

/// Adds to a plane's state the one that its run starts from, one of `slots` (their address) or of
/// `initial_states`, if there is one.
#[cube]
pub(crate) fn add_entry(
    state: &mut Array<Accumulator>,
    runs: &RunLists,
    slots: u64,
    initial_states: &[f32],
    place: &Place,
    #[comptime] config: PathConfig,
) {
    let entry = runs.entries[place.run as usize];
    if entry != NO_ENTRY {
        let (source, number) = if entry <= LAST_SLOT {
            (slots, entry)
        } else {
            (global_address::<f32>(initial_states), FIRST_INITIAL - entry)
        };
        add_state(state, state_address(source, number, place, config), config);
    }
}

/// Adds a state to that of a plane.
#[cube]
pub(crate) fn add_state(
    state: &mut Array<Accumulator>,
    address: u64,
    #[comptime] config: PathConfig,
) {
    #[unroll]
    for n in 0..comptime!(config.key_dim / 8) {
        let mut tile = state[n];
        #[unroll]
        for i in 0..4usize {
            let offset = comptime!(4 * ((8 * n + i % 2) * config.value_dim + i / 2 * 8));
            let number = f32::reinterpret(load_word_global(address, offset));
            tile.insert(i, tile.extract(i) + number);
        }
        state[n] = tile;
    }
}

/// Writes the state of a plane.
#[cube]
pub(crate) fn write_state(
    state: &Array<Accumulator>,
    address: u64,
    #[comptime] config: PathConfig,
) {
    #[unroll]
    for n in 0..comptime!(config.key_dim / 8) {
        let tile = state[n];
        #[unroll]
        for i in 0..4usize {
            let offset = comptime!(4 * ((8 * n + i % 2) * config.value_dim + i / 2 * 8));
            store_word_global(address, offset, u32::reinterpret(tile.extract(i)));
        }
    }
}

/// The state of a plane as left operands, rounded.
#[cube]
pub(crate) fn round_state<E: Float>(
    state: &Array<Accumulator>,
    #[comptime] config: PathConfig,
) -> Array<Fragment> {
    let mut rounded = Array::<Fragment>::new(comptime!(config.key_dim / 16));
    #[unroll]
    for k in 0..comptime!(config.key_dim / 16) {
        rounded[k] = pack_left::<E>(state[2 * k], state[2 * k + 1]);
    }
    rounded
}

/// Writes the rounded state of a plane as 16 rows of `DK` 16-bit numbers, through its staging rows.
#[cube]
pub(crate) fn write_rounded_state(
    rounded: &Array<Fragment>,
    staging: u32,
    target: &HeadRows,
    lane: u32,
    #[comptime] config: PathConfig,
) {
    let stride = comptime!(row_stride(config.key_dim));
    let to = staging + lane / 4 * comptime!(stride as u32) + lane % 4 * 4;
    sync_plane();
    #[unroll]
    for k in 0..comptime!(config.key_dim / 16) {
        let operand = rounded[k];
        #[unroll]
        for i in 0..4usize {
            let offset = comptime!(i % 2 * 8 * stride + k * 32 + i / 2 * 16);
            store_word(to, offset, operand.extract(i));
        }
    }
    sync_plane();
    store_head_rows(staging, target, lane, 16u32, config.key_dim);
}

/// Adds to `product` (16 x 64, transposed rows of a window) that of a plane's rounded state with
/// rows of keys, whose first has the address, plus the lane's offset by columns.
#[cube]
pub(crate) fn multiply_state<E: Float>(
    product: &mut Array<Accumulator>,
    rounded: &Array<Fragment>,
    keys: u32,
    #[comptime] config: PathConfig,
) {
    let stride = comptime!(row_stride(config.key_dim));
    #[unroll]
    for k in 0..comptime!(config.key_dim / 16) {
        #[unroll]
        for n in 0..TILES {
            let right = load_block(keys, comptime!(n * 16 * stride + k * 32), false);
            add_product::<E>(product, comptime!(2 * n), rounded[k], right);
        }
    }
}

/// Adds to a plane's state the product of `left` (16 x 64, transposed rows of a window) with rows
/// of keys, whose first has the address, plus the lane's offset by rows.
#[cube]
pub(crate) fn add_to_state<E: Float>(
    state: &mut Array<Accumulator>,
    left: &Array<Fragment>,
    keys: u32,
    #[comptime] config: PathConfig,
) {
    let stride = comptime!(row_stride(config.key_dim) as u32);
    #[unroll]
    for k in 0..TILES {
        let rows = keys + comptime!(16 * k as u32 * stride);
        add_rows::<E>(state, left[k], rows, config.key_dim);
    }
}

/// A state times a number.
#[cube]
pub(crate) fn scale_state(
    state: &mut Array<Accumulator>,
    factor: f32,
    #[comptime] config: PathConfig,
) {
    #[unroll]
    for n in 0..comptime!(config.key_dim / 8) {
        let mut tile = state[n];
        #[unroll]
        for i in 0..4usize {
            tile.insert(i, tile.extract(i) * factor);
        }
        state[n] = tile;
    }
}

/// Two neighbouring accumulators of transposed rows, every column (row of the window) times its
/// factor and all times `scale`; `factors`: the address of the first column's, plus the lane's 8
/// bytes.
#[cube]
pub(crate) fn scale_columns<E: Float>(
    first: Accumulator,
    second: Accumulator,
    scale: f32,
    factors: u32,
    #[comptime] offset: usize,
) -> Fragment {
    let of_first = load_pair(factors, offset);
    let of_second = load_pair(factors, comptime!(offset + 32));
    let mut scaled = Array::<Accumulator>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        let (tile, of_tile) = if comptime!(half == 0) {
            (first, of_first)
        } else {
            (second, of_second)
        };
        let mut product = Accumulator::empty();
        #[unroll]
        for i in 0..4usize {
            let factor = f32::reinterpret(of_tile.extract(comptime!(i % 2)));
            product.insert(i, tile.extract(i) * (factor * scale));
        }
        scaled[half] = product;
    }
    pack_left::<E>(scaled[0], scaled[1])
}

/// Writes a plane's 16 columns of a window, held as transposed left operands, to the window's rows
/// in global memory, through its columns of a tile in shared memory. `tile`: the address of its
/// first row of the plane's columns.
#[cube]
pub(crate) fn write_columns(
    operands: &Array<Fragment>,
    tile: u32,
    target: &HeadRows,
    lane: u32,
    valid: u32,
    #[comptime] config: PathConfig,
) {
    let stride = comptime!(row_stride(config.columns()));
    let to = tile + lane / 4 * comptime!(stride as u32) + lane % 4 * 4;
    sync_plane();
    #[unroll]
    for k in 0..TILES {
        let operand = operands[k];
        #[unroll]
        for i in 0..4usize {
            let offset = comptime!((16 * k + i / 2 * 8) * stride + i % 2 * 16);
            store_word(to, offset, transpose_block(operand.extract(i)));
        }
    }
    sync_plane();
    #[unroll]
    for pass in 0..comptime!(ROWS / 16) {
        let row = lane / 2 + comptime!(16 * pass as u32);
        if row < valid {
            let half = lane % 2 * CHUNK as u32;
            let from = tile + row * comptime!(stride as u32) + half;
            let to = target.first + u64::cast_from(row) * target.row_bytes + u64::cast_from(half);
            store_chunk_global(to, load_chunk(from, 0usize));
        }
    }
}
