//! What planes do with a window along a path: the step of the states, and the outputs.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::blocks::*;
use super::super::place::*;
use super::super::rows::*;
use super::super::states::*;
use super::super::words::*;
use super::copies::NUMBERS;

/// Bytes of an operand of a plane.
pub(super) const OPERAND: usize = PLANE * CHUNK;

/// A window in shared memory.
#[derive(CubeType, Clone, Copy)]
pub(super) struct StagedWindow {
    /// Address of what the planes need of it.
    pub stage: u32,
    /// Address of the lane's part of the plane's rounded state before it, and of its updates.
    pub exchange: u32,
    /// Rows.
    pub length: u32,
}

/// Takes a plane's state over a window, and leaves the state before it and the updates, rounded,
/// for its outputs. If the path does not go on, the state stays as it is.
#[cube]
pub(super) fn update<E: Float>(
    state: &mut Array<Accumulator>,
    window: &StagedWindow,
    place: &Place,
    goes_on: bool,
    #[comptime] config: PathConfig,
) {
    let rounded = round_state::<E>(&*state, config);
    if window.length > comptime!((ROWS - 16) as u32) {
        update_tiles::<E>(state, &rounded, window, place, goes_on, true, config);
    } else {
        update_tiles::<E>(state, &rounded, window, place, goes_on, false, config);
    }
}

/// Writes a plane's columns of the outputs of a window to `output`, rows from the window's first.
#[cube]
pub(super) fn write_output<E: Float>(
    window: &StagedWindow,
    output: &HeadRows,
    lane: u32,
    scale: f32,
    #[comptime] config: PathConfig,
) {
    if window.length > comptime!((ROWS - 16) as u32) {
        write_output_tiles::<E>(window, output, lane, scale, true, config);
    } else {
        write_output_tiles::<E>(window, output, lane, scale, false, config);
    }
}

/// [`update`]. With `full`, the window has four tiles of rows.
#[cube]
fn update_tiles<E: Float>(
    state: &mut Array<Accumulator>,
    rounded: &Array<Fragment>,
    window: &StagedWindow,
    place: &Place,
    goes_on: bool,
    #[comptime] full: bool,
    #[comptime] config: PathConfig,
) {
    let key_dim = comptime!(config.key_dim);
    let (stage, exchange, lane) = (window.stage, window.exchange, place.lane);
    let mixing = stage + comptime!(config.key_tile() as u32) + lane_offset_by_columns(lane, ROWS);
    let values = stage + comptime!((config.key_tile() + SQUARE) as u32);
    let decays = values + comptime!(config.slice_tile() as u32);
    let values =
        values + place.plane * 32 + lane_offset_by_columns(lane, comptime!(config.columns()));
    let tiles = tiles_of(window.length, full);

    #[unroll]
    for k in 0..comptime!(key_dim / 16) {
        store_chunk(exchange, comptime!(k * OPERAND), rounded[k]);
    }
    let mut product = Array::<Accumulator>::new(comptime!(2 * TILES));
    let by_columns = stage + lane_offset_by_columns(lane, key_dim);
    multiply_rows_of_state::<E>(&mut product, rounded, by_columns, tiles, full, config);

    let mut left = Array::<Fragment>::new(TILES);
    #[unroll]
    for n in 0..TILES {
        if (n as u32) < tiles {
            let offset = comptime!(16 * n * row_stride(config.columns()));
            let packed = load_block(values, offset, true);
            let (first, second) = unpack_left::<E>(packed);
            let factors = decays + lane % 4 * 8;
            left[n] = pack_left::<E>(
                first - decayed(product[2 * n], 1.0f32, factors, comptime!(64 * n)),
                second - decayed(product[2 * n + 1], 1.0f32, factors, comptime!(64 * n + 32)),
            );
        }
    }
    let mut updates = Array::<Accumulator>::new(comptime!(2 * TILES));
    clear(&mut updates, comptime!(2 * TILES));
    add_triangle::<E>(&mut updates, &left, mixing, tiles);
    #[unroll]
    for n in 0..TILES {
        let packed = pack_left::<E>(updates[2 * n], updates[2 * n + 1]);
        store_chunk(exchange, comptime!((key_dim / 16 + n) * OPERAND), packed);
    }

    if goes_on {
        let to_last = decays + NUMBERS as u32 + lane % 4 * 8;
        let decay = load_number(decays + (window.length - 1) * 4, 0usize);
        scale_state(state, decay, config);
        let by_rows = stage + lane_offset_by_rows(lane, key_dim);
        #[unroll]
        for n in 0..TILES {
            if (n as u32) < tiles {
                let (first, second) = (updates[2 * n], updates[2 * n + 1]);
                let left = scale_columns::<E>(first, second, 1.0f32, to_last, comptime!(64 * n));
                let rows = by_rows + comptime!((16 * n * row_stride(key_dim)) as u32);
                add_rows::<E>(state, left, rows, key_dim);
            }
        }
    }
}

/// [`write_output`]. With `full`, the window has four tiles of rows.
#[cube]
fn write_output_tiles<E: Float>(
    window: &StagedWindow,
    output: &HeadRows,
    lane: u32,
    scale: f32,
    #[comptime] full: bool,
    #[comptime] config: PathConfig,
) {
    let key_dim = comptime!(config.key_dim);
    let (stage, exchange) = (window.stage, window.exchange);
    let scores = stage + comptime!(config.key_tile() as u32);
    let factors = scores + SQUARE as u32 + lane % 4 * 8;
    let tiles = tiles_of(window.length, full);
    let mut rounded = Array::<Fragment>::new(comptime!(key_dim / 16));
    #[unroll]
    for k in 0..comptime!(key_dim / 16) {
        rounded[k] = load_chunk(exchange, comptime!(k * OPERAND));
    }
    let mut sums = Array::<Accumulator>::new(comptime!(2 * TILES));
    let by_columns = stage + lane_offset_by_columns(lane, key_dim);
    multiply_rows_of_state::<E>(&mut sums, &rounded, by_columns, tiles, full, config);
    let mut updates = Array::<Fragment>::new(TILES);
    #[unroll]
    for n in 0..TILES {
        updates[n] = load_chunk(exchange, comptime!((key_dim / 16 + n) * OPERAND));
        sums[2 * n] = decayed(sums[2 * n], scale, factors, comptime!(64 * n));
        sums[2 * n + 1] = decayed(sums[2 * n + 1], scale, factors, comptime!(64 * n + 32));
    }
    let scores = scores + lane_offset_by_columns(lane, ROWS);
    add_triangle::<E>(&mut sums, &updates, scores, tiles);
    #[unroll]
    for n in 0..TILES {
        updates[n] = pack_left::<E>(sums[2 * n], sums[2 * n + 1]);
    }
    // Its columns alone, in place of what has been read.
    let of_plane = comptime!(PathConfig {
        planes: 1,
        ..config
    });
    let staging = exchange - lane * CHUNK as u32;
    write_columns(&updates, staging, output, lane, window.length, of_plane);
}

/// 16-row tiles of a window of `length` rows.
#[cube]
fn tiles_of(length: u32, #[comptime] full: bool) -> u32 {
    if comptime!(full) {
        comptime!(TILES as u32).runtime()
    } else {
        length.div_ceil(16u32)
    }
}

/// The product (16 x 64, transposed rows of a window) of a plane's rounded state with rows of a
/// tile, whose first has the address, plus the lane's offset by columns. Pairs of row tiles that
/// the window does not reach are left out.
#[cube]
fn multiply_rows_of_state<E: Float>(
    product: &mut Array<Accumulator>,
    rounded: &Array<Fragment>,
    rows: u32,
    tiles: u32,
    #[comptime] full: bool,
    #[comptime] config: PathConfig,
) {
    clear(product, comptime!(2 * TILES));
    if comptime!(full) {
        multiply_state::<E>(product, rounded, rows, config);
    } else {
        let stride = comptime!(row_stride(config.key_dim));
        #[unroll]
        for pair in 0..comptime!(TILES / 2) {
            if comptime!(2 * pair as u32) < tiles {
                #[unroll]
                for k in 0..comptime!(config.key_dim / 16) {
                    #[unroll]
                    for of_pair in 0..2usize {
                        let n = comptime!(2 * pair + of_pair);
                        let right = load_block(rows, comptime!(n * 16 * stride + k * 32), false);
                        add_product::<E>(product, comptime!(2 * n), rounded[k], right);
                    }
                }
            }
        }
    }
}

/// Adds the product of transposed rows of a window with a lower triangular tile, whose first row
/// has the address, plus the lane's offset by columns.
#[cube]
fn add_triangle<E: Float>(
    sums: &mut Array<Accumulator>,
    left: &Array<Fragment>,
    rows: u32,
    tiles: u32,
) {
    let stride = comptime!(row_stride(ROWS));
    #[unroll]
    for column in 0..TILES {
        #[unroll]
        for row in column..TILES {
            if (row as u32) < tiles {
                let right = load_block(rows, comptime!(16 * row * stride + 32 * column), false);
                add_product::<E>(sums, comptime!(2 * row), left[column], right);
            }
        }
    }
}

/// Transposed rows of a window, each times `scale` and its factor; `factors`: the address of the
/// first one's, plus the lane's 8 bytes.
#[cube]
fn decayed(rows: Accumulator, scale: f32, factors: u32, #[comptime] offset: usize) -> Accumulator {
    let pair = load_pair(factors, offset);
    let mut product = Accumulator::empty();
    #[unroll]
    for i in 0..4usize {
        let factor = f32::reinterpret(pair.extract(comptime!(i % 2)));
        product.insert(i, rows.extract(i) * (factor * scale));
    }
    product
}
