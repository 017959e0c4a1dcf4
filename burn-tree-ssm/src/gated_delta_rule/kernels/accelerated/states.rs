//! Blocks of the two kernels that walk along paths: a plane holds 16 value columns of a state in
//! its registers, transposed (`[16, DK]`), so planes need nothing of each other.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::blocks::*;

/// No slot, in lists of slots.
pub(crate) const NO_SLOT: u32 = -1i32 as u32;
/// A state of zeros, in lists of entries.
pub(crate) const NO_ENTRY: u32 = -1i32 as u32;
/// The first initial state, in lists of entries; the next ones count down.
pub(crate) const FIRST_INITIAL: u32 = -2i32 as u32;
/// The largest number of a slot.
pub(crate) const LAST_SLOT: u32 = i32::MAX as u32;

/// Compile-time shape of the kernels along paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PathConfig {
    /// Numbers of a key, a multiple of 64.
    pub key_dim: usize,
    /// Numbers of a value, a multiple of 64.
    pub value_dim: usize,
    /// Planes that compute: 2 or 4. As many others copy.
    pub planes: usize,
    /// Windows whose inputs are in shared memory at a time, at least 2.
    pub stages: usize,
}

impl PathConfig {
    /// Units of a cube.
    pub(crate) const fn units(self) -> usize {
        2 * self.copying()
    }

    /// Units that copy, the last of the cube.
    pub(crate) const fn copying(self) -> usize {
        self.planes * PLANE
    }

    /// Value columns of a cube.
    pub(crate) const fn columns(self) -> usize {
        16 * self.planes
    }

    /// Cubes per path and head.
    pub(crate) const fn slices(self) -> usize {
        self.value_dim / self.columns()
    }

    /// Bytes of a window's rows of keys in shared memory.
    pub(crate) const fn key_tile(self) -> usize {
        tile_bytes(ROWS, self.key_dim)
    }

    /// Bytes of a window's rows of the cube's value columns in shared memory.
    pub(crate) const fn slice_tile(self) -> usize {
        tile_bytes(ROWS, self.columns())
    }

    /// Bytes of `key_tiles` and `slice_tiles` tiles and two numbers per row of a window, for all
    /// stages.
    pub(crate) const fn stage_bytes(self, key_tiles: usize, slice_tiles: usize) -> usize {
        key_tiles * self.key_tile() + slice_tiles * self.slice_tile() + 2 * 4 * ROWS
    }

    /// Bytes in which planes turn states into rows of 16-bit numbers.
    pub(crate) const fn staging_bytes(self) -> usize {
        self.planes * tile_bytes(16, self.key_dim)
    }
}

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

/// The address of the first number of a lane's part of a state that is kept as `[.., HV, DK, DV]`
/// f32 numbers, of which its plane holds the columns from `column` on.
#[cube]
pub(crate) fn state_address(
    states: u64,
    state: u32,
    head: u32,
    value_heads: u32,
    column: u32,
    lane: u32,
    #[comptime] config: PathConfig,
) -> u64 {
    let (key_dim, value_dim) = comptime!((config.key_dim as u32, config.value_dim as u32));
    let number = u64::cast_from(state) * u64::cast_from(value_heads) + u64::cast_from(head);
    let in_state = lane % 4 * 2 * value_dim + column + lane / 4;
    states
        + number * comptime!(4 * key_dim as u64 * value_dim as u64)
        + u64::cast_from(in_state * 4)
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
    global: u64,
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
    store_spread_rows(
        staging,
        global,
        u64::cast_from(comptime!(2 * config.key_dim as u32)),
        lane,
        16u32,
        16usize,
        config.key_dim,
    );
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
    global: u64,
    row_bytes: u64,
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
            let to = global + u64::cast_from(row) * row_bytes + u64::cast_from(half);
            store_chunk_global(to, load_chunk(from, 0usize));
        }
    }
}
