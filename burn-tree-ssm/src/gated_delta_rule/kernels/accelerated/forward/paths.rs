//! States and outputs along paths, level by level: paths start from slots that paths of the levels
//! before have written.
//!
//! A window's step in the sequence is `Y = K H`, `R = V - e^G Y`, `U = mixing R`, then
//! `H = e^G_last H + K^T (decay to the last token) U`. All of it is transposed: a plane has 16
//! value columns of the state in its registers, and what one product gives is, packed, the left
//! operand of the next, so that nothing is exchanged. Outputs, `O = e^G scale Q H + scores U`, are
//! not in the sequence: other planes compute them one window behind, from rounded states and
//! updates that they get through shared memory. They also start all copies. States and updates
//! never reach global memory, except those of slots.

use burn_tree_kit::cube::matrix::*;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::blocks::*;
use super::super::states::*;
use super::copies::*;

/// Bytes of an operand of a plane.
const OPERAND: usize = PLANE * CHUNK;

impl PathConfig {
    /// Bytes of a window that the sequence reads: keys, mixing, values, decays.
    const fn update_bytes(self) -> usize {
        self.key_tile() + SQUARE + self.slice_tile() + 2 * NUMBERS
    }

    /// Bytes of a window that its outputs need: queries, scores, decays.
    const fn output_bytes(self) -> usize {
        self.key_tile() + SQUARE + NUMBERS
    }

    /// Where the windows for outputs start.
    const fn outputs_at(self) -> usize {
        self.stages * self.update_bytes()
    }

    /// Where planes leave states and updates, in turn in one of two places.
    const fn exchanges_at(self) -> usize {
        self.outputs_at() + self.stages * self.output_bytes()
    }

    /// Bytes of the state and the updates of a plane.
    const fn exchange_bytes(self) -> usize {
        (self.key_dim / 16 + TILES) * OPERAND
    }

    /// Bytes of shared memory of a cube of [`gated_delta_rule_paths`].
    pub(crate) const fn paths_shared_bytes(self) -> usize {
        self.exchanges_at() + 2 * self.planes * self.exchange_bytes()
    }
}

/// Outputs and the states of slots.
///
/// * `query`, `key` `[R, HK, DK]`, `value` `[R, HV, DV]`
/// * `mixing`, `scores` `[R, HV, 64]`, `decays` `[2, HV, R]`: of
///   [`gated_delta_rule_local`](super::local::gated_delta_rule_local)
/// * `states` `[S, HV, DK, DV]`: slots, from which paths start and into which the states after
///   windows with a slot are written; `initial_states` `[G, HV, DK, DV]`
/// * `output` `[R, HV, DV]`
///
/// * `run_offsets`, `run_entries`, `run_siblings`: of [`Runs`](crate::recurrence::runs::Runs);
///   `entry` is a slot, or [`NO_ENTRY`], or an initial state from [`FIRST_INITIAL`] down
///
/// Cubes: x = the slices of value columns of the first head of run `first_run`, of the next head,
/// .., of the next run.
#[cube(launch_unchecked)]
pub(crate) fn gated_delta_rule_paths<E: Float>(
    query: &[E],
    key: &[E],
    value: &[E],
    mixing: &[E],
    scores: &[E],
    decays: &[f32],
    states: &mut [f32],
    initial_states: &[f32],
    window_starts: &[u32],
    window_lengths: &[u32],
    window_slots: &[u32],
    run_offsets: &[u32],
    run_entries: &[u32],
    run_siblings: &[u32],
    output: &mut [E],
    rows: u32,
    key_heads: u32,
    value_heads: u32,
    first_run: u32,
    scale: f32,
    #[comptime] config: PathConfig,
    #[define(E)] _dtype: ElemType,
) {
    let (key_dim, value_dim) = comptime!((config.key_dim, config.value_dim));
    let stages = comptime!(config.stages);
    let slices = comptime!(config.slices() as u32);
    let slice = CUBE_POS_X % slices;
    let head = CUBE_POS_X / slices % value_heads;
    let run = first_run + CUBE_POS_X / slices / value_heads;
    let first = run_offsets[run as usize];
    let end = run_offsets[run as usize + 1];

    let lane = UNIT_POS_X % 32;
    let copying = comptime!(config.copying() as u32);
    let copies = UNIT_POS_X >= copying;
    let unit = UNIT_POS_X % copying;
    let plane = unit / 32;
    let column = slice * comptime!(config.columns() as u32) + plane * 16;
    let memory =
        Shared::<[u32]>::new_aligned_slice(comptime!(config.paths_shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let for_outputs = shared + comptime!(config.outputs_at() as u32);
    let mut exchange = shared
        + comptime!(config.exchanges_at() as u32)
        + plane * comptime!(config.exchange_bytes() as u32)
        + lane * CHUNK as u32;
    let mut last_exchange = exchange + comptime!((config.planes * config.exchange_bytes()) as u32);

    let mut state = Array::<Accumulator>::new(comptime!(key_dim / 8));
    clear(&mut state, comptime!(key_dim / 8));
    let slots = output_address(states);

    // Of the copying planes: the windows from that `stages - 1` ahead to the one before.
    let mut starts = Array::<u32>::new(comptime!(stages + 1));
    let mut lengths = Array::<u32>::new(comptime!(stages + 1));
    let key_head = head / (value_heads / key_heads);
    let of_key = row_offset(0u32, key_heads, key_head, key_dim);
    let of_square = row_offset(0u32, value_heads, head, ROWS);
    let first_column = u64::cast_from(2 * slice * comptime!(config.columns() as u32));
    let sources = Sources {
        query: global_address::<E>(query) + of_key,
        key: global_address::<E>(key) + of_key,
        value: global_address::<E>(value)
            + row_offset(0u32, value_heads, head, value_dim)
            + first_column,
        mixing: global_address::<E>(mixing) + of_square,
        scores: global_address::<E>(scores) + of_square,
        decays: global_address::<f32>(decays) + u64::cast_from(head) * u64::cast_from(rows) * 4,
        key_row_bytes: row_bytes(key_heads, key_dim),
        value_row_bytes: row_bytes(value_heads, value_dim),
        square_row_bytes: row_bytes(value_heads, ROWS),
        part: u64::cast_from(value_heads) * u64::cast_from(rows) * 4,
    };
    // Of the computing planes: the window at hand.
    let mut length = window_lengths[first as usize];
    let mut of_slot = window_slots[first as usize];
    let siblings = run_siblings[run as usize];
    if copies {
        #[unroll]
        for behind in 0..comptime!(stages + 1) {
            let window = first + comptime!((stages - 1).saturating_sub(behind) as u32);
            let window = min(window, end - 1) as usize;
            starts[behind] = window_starts[window];
            lengths[behind] = window_lengths[window];
        }
        #[unroll]
        for ahead in 0..comptime!(stages - 1) {
            let window = first + ahead as u32;
            if window < end {
                let (start, length) = (starts[stages - 1 - ahead], lengths[stages - 1 - ahead]);
                let to = shared + comptime!((ahead * config.update_bytes()) as u32);
                copy_update(&sources, start, length, to, unit, config);
            }
            if comptime!(ahead > 0) {
                if window - 1 < end {
                    let (start, length) = (starts[stages - ahead], lengths[stages - ahead]);
                    let to = for_outputs
                        + comptime!((ahead.saturating_sub(1) * config.output_bytes()) as u32);
                    copy_output(&sources, start, length, to, unit, config);
                }
            }
            commit_copies();
        }
    } else {
        let entry = run_entries[run as usize];
        if entry != NO_ENTRY {
            let (source, number) = if entry <= LAST_SLOT {
                (slots, entry)
            } else {
                (global_address::<f32>(initial_states), FIRST_INITIAL - entry)
            };
            let from = state_address(source, number, head, value_heads, column, lane, config);
            add_state(&mut state, from, config);
        }
    }

    // Places of the window at hand, of the one before and of the one before that.
    let mut stage = 0u32;
    let mut last_stage = comptime!(stages as u32 - 1).runtime();
    for window in first..end + 1 {
        // Copies that others started are waited for by them.
        wait_copies(comptime!(stages - 2));
        // What the window before has used is free; what this one needs is there.
        sync_cube();
        if copies {
            let ahead = min(window + comptime!(stages as u32), end - 1) as usize;
            let next_start = window_starts[ahead];
            let next_length = window_lengths[ahead];
            if window + comptime!(stages as u32 - 1) < end {
                let to = shared + last_stage * comptime!(config.update_bytes() as u32);
                copy_update(&sources, starts[0], lengths[0], to, unit, config);
            }
            if window + comptime!(stages as u32 - 2) < end {
                let before = select(
                    last_stage == 0,
                    comptime!(stages as u32 - 1),
                    last_stage - 1,
                );
                let to = for_outputs + before * comptime!(config.output_bytes() as u32);
                copy_output(&sources, starts[1], lengths[1], to, unit, config);
            }
            commit_copies();
            if window > first {
                let from = for_outputs + last_stage * comptime!(config.output_bytes() as u32);
                let row = u64::cast_from(starts[stages]) * sources.value_row_bytes;
                let to = output_address(output)
                    + row
                    + row_offset(0u32, value_heads, head, value_dim)
                    + u64::cast_from(2 * column);
                let length = lengths[stages];
                if length > comptime!((ROWS - 16) as u32) {
                    write_output::<E>(
                        from,
                        last_exchange,
                        to,
                        sources.value_row_bytes,
                        lane,
                        length,
                        scale,
                        true,
                        config,
                    );
                } else {
                    write_output::<E>(
                        from,
                        last_exchange,
                        to,
                        sources.value_row_bytes,
                        lane,
                        length,
                        scale,
                        false,
                        config,
                    );
                }
            }
            #[unroll]
            for i in 0..stages {
                starts[stages - i] = starts[stages - 1 - i];
                lengths[stages - i] = lengths[stages - 1 - i];
            }
            starts[0] = next_start;
            lengths[0] = next_length;
        } else if window < end {
            let next = min(window + 1, end - 1) as usize;
            let next_length = window_lengths[next];
            let next_slot = window_slots[next];
            let goes_on = (siblings == 0 && window + 1 < end) || of_slot != NO_SLOT;
            let rounded = round_state::<E>(&state, config);
            let from = shared + stage * comptime!(config.update_bytes() as u32);
            if length > comptime!((ROWS - 16) as u32) {
                update::<E>(
                    &mut state, &rounded, from, exchange, plane, lane, length, goes_on, true,
                    config,
                );
            } else {
                update::<E>(
                    &mut state, &rounded, from, exchange, plane, lane, length, goes_on, false,
                    config,
                );
            }
            if of_slot != NO_SLOT {
                let to = state_address(slots, of_slot, head, value_heads, column, lane, config);
                write_state(&state, to, config);
            }
            length = next_length;
            of_slot = next_slot;
        }
        last_stage = stage;
        stage += 1;
        if stage == comptime!(stages as u32) {
            stage = 0u32;
        }
        let other = exchange;
        exchange = last_exchange;
        last_exchange = other;
    }
    wait_copies(0usize);
}

/// Takes a plane's state over a window, and leaves the state before it and the updates, rounded, at
/// `exchange`. With `full`, the window has four tiles of rows. If the path does not go on, the
/// state stays as it is.
#[cube]
fn update<E: Float>(
    state: &mut Array<Accumulator>,
    rounded: &Array<Fragment>,
    stage: u32,
    exchange: u32,
    plane: u32,
    lane: u32,
    length: u32,
    goes_on: bool,
    #[comptime] full: bool,
    #[comptime] config: PathConfig,
) {
    let key_dim = comptime!(config.key_dim);
    let mixing = stage + comptime!(config.key_tile() as u32) + lane_offset_by_columns(lane, ROWS);
    let values = stage + comptime!((config.key_tile() + SQUARE) as u32);
    let decays = values + comptime!(config.slice_tile() as u32);
    let values = values + plane * 32 + lane_offset_by_columns(lane, comptime!(config.columns()));
    let tiles = tiles_of(length, full);

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
        let decay = load_number(decays + (length - 1) * 4, 0usize);
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

/// Writes a plane's columns of the outputs of a window from what is at `exchange`.
#[cube]
fn write_output<E: Float>(
    stage: u32,
    exchange: u32,
    output: u64,
    row_bytes: u64,
    lane: u32,
    length: u32,
    scale: f32,
    #[comptime] full: bool,
    #[comptime] config: PathConfig,
) {
    let key_dim = comptime!(config.key_dim);
    let scores = stage + comptime!(config.key_tile() as u32);
    let factors = scores + SQUARE as u32 + lane % 4 * 8;
    let tiles = tiles_of(length, full);
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
    add_triangle::<E>(
        &mut sums,
        &updates,
        scores + lane_offset_by_columns(lane, ROWS),
        tiles,
    );
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
    write_columns(&updates, staging, output, row_bytes, lane, length, of_plane);
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
