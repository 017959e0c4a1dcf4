//! The gradients of the states along runs, from their ends.

use burn_tree_kit::cube::matrix::*;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::blocks::*;
use super::super::states::*;

impl PathConfig {
    /// Bytes of shared memory of a cube of [`gated_delta_rule_backward_reverse_scan`].
    pub(crate) const fn reverse_shared_bytes(self) -> usize {
        self.stages * self.stage_bytes(3, 2) + self.staging_bytes()
    }
}

/// What a cube copies from.
#[derive(CubeType, Clone, Copy)]
struct Sources {
    query: u64,
    key: u64,
    w: u64,
    grad_output: u64,
    grad_u: u64,
    decays: u64,
    key_row_bytes: u64,
    w_row_bytes: u64,
    value_row_bytes: u64,
    /// Bytes from the decays from the entry to those to the last token.
    part: u64,
}

/// Starts copying a window into a stage, by one of the copying units.
#[cube]
fn copy_window(
    sources: &Sources,
    start: u32,
    length: u32,
    stage: u32,
    unit: u32,
    #[comptime] config: PathConfig,
) {
    let units = comptime!(config.copying());
    let row = u64::cast_from(start);
    let key_tile = comptime!(config.key_tile() as u32);
    let slice_tile = comptime!(config.slice_tile() as u32);
    let gradients = stage + 3 * key_tile;
    copy_spread_rows(
        sources.key + row * sources.key_row_bytes,
        sources.key_row_bytes,
        stage,
        unit,
        length,
        ROWS,
        config.key_dim,
        units,
    );
    copy_spread_rows(
        sources.query + row * sources.key_row_bytes,
        sources.key_row_bytes,
        stage + key_tile,
        unit,
        length,
        ROWS,
        config.key_dim,
        units,
    );
    copy_spread_rows(
        sources.w + row * sources.w_row_bytes,
        sources.w_row_bytes,
        stage + 2 * key_tile,
        unit,
        length,
        ROWS,
        config.key_dim,
        units,
    );
    copy_spread_rows(
        sources.grad_output + row * sources.value_row_bytes,
        sources.value_row_bytes,
        gradients,
        unit,
        length,
        ROWS,
        comptime!(config.columns()),
        units,
    );
    copy_spread_rows(
        sources.grad_u + row * sources.value_row_bytes,
        sources.value_row_bytes,
        gradients + slice_tile,
        unit,
        length,
        ROWS,
        comptime!(config.columns()),
        units,
    );
    let decays = gradients + 2 * slice_tile;
    copy_decays(
        sources.decays + row * 4,
        sources.part,
        decays,
        unit,
        length,
        config,
    );
}

/// Along each run from its end, with `dS` the gradient of the state after a window and `dH` of that
/// before it:
/// `dU = grad_u + diag(decay to the last token) K dS`, in place of `grad_u`, and
/// `dH = e^G_last dS + (e^G scale Q)^T dO - W^T dU`.
///
/// * `exits` `[W, HV, DV, DK]`: every window's `dS`, rounded and transposed; not set where it is
///   0 because its path ends without a slot: `has_exit` `[W]` says so
/// * `run_gradients` `[Q, HV, DK, DV]`: `dH` of each run's first window, or the sum over siblings,
///   where the run has an entry
/// * to the `dS` of a window with a slot are added the `run_gradients` of the slot's children
///   (`slot_children`, by `slot_child_offsets`), in their order, which earlier launches wrote, and
///   the gradient of the slot's state if it was requested (`grad_states` `[X, HV, DK, DV]`, the
///   first `requested` slots)
///
/// Cubes: x = the slices of value columns of the first head of run `first_run`, of the next head,
/// .., of the next run.
#[cube(launch_unchecked)]
pub(crate) fn gated_delta_rule_backward_reverse_scan<E: Float>(
    query: &[E],
    key: &[E],
    w: &[E],
    grad_output: &[E],
    grad_u: &mut [E],
    decays: &[f32],
    grad_states: &[f32],
    window_starts: &[u32],
    window_lengths: &[u32],
    window_slots: &[u32],
    run_offsets: &[u32],
    run_entries: &[u32],
    run_siblings: &[u32],
    slot_child_offsets: &[u32],
    slot_children: &[u32],
    exits: &mut [Vector<u32, Const<4>>],
    has_exit: &mut [u32],
    run_gradients: &mut [f32],
    rows: u32,
    key_heads: u32,
    value_heads: u32,
    scale: f32,
    first_run: u32,
    requested: u32,
    #[comptime] config: PathConfig,
    #[define(E)] _dtype: ElemType,
) {
    let (key_dim, value_dim) = comptime!((config.key_dim, config.value_dim));
    let stages = comptime!(config.stages as u32);
    let stage_bytes = comptime!(config.stage_bytes(3, 2) as u32);
    let slices = comptime!(config.slices() as u32);
    let slice = CUBE_POS_X % slices;
    let head = CUBE_POS_X / slices % value_heads;
    let run = first_run + CUBE_POS_X / slices / value_heads;
    let first = run_offsets[run as usize];
    let end = run_offsets[run as usize + 1];

    let lane = UNIT_POS_X % 32;
    let plane = UNIT_POS_X / 32;
    let first_column = slice * comptime!(config.columns() as u32);
    let column = first_column + plane * 16;
    let memory =
        Shared::<[u32]>::new_aligned_slice(comptime!(config.reverse_shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let staging =
        shared + stages * stage_bytes + plane * comptime!(tile_bytes(16, config.key_dim) as u32);

    let key_head = head / (value_heads / key_heads);
    let of_keys = row_offset(0u32, key_heads, key_head, key_dim);
    let of_values =
        row_offset(0u32, value_heads, head, value_dim) + u64::cast_from(2 * first_column);
    let sources = Sources {
        query: global_address::<E>(query) + of_keys,
        key: global_address::<E>(key) + of_keys,
        w: global_address::<E>(w) + row_offset(0u32, value_heads, head, key_dim),
        grad_output: global_address::<E>(grad_output) + of_values,
        grad_u: output_address(grad_u) + of_values,
        decays: global_address::<f32>(decays)
            + (u64::cast_from(value_heads) + u64::cast_from(head)) * u64::cast_from(rows) * 4,
        key_row_bytes: row_bytes(key_heads, key_dim),
        w_row_bytes: row_bytes(value_heads, key_dim),
        value_row_bytes: row_bytes(value_heads, value_dim),
        part: u64::cast_from(value_heads) * u64::cast_from(rows) * 4,
    };
    let gradients_of_runs = output_address(run_gradients);
    let siblings = run_siblings[run as usize] == 1;
    let windows = end - first;
    let copies = UNIT_POS_X >= comptime!(config.copying() as u32);
    let unit = UNIT_POS_X % comptime!(config.copying() as u32);
    if copies {
        #[unroll]
        for ahead in 0..comptime!(config.stages - 1) {
            if (ahead as u32) < windows {
                let window = end - 1 - ahead as u32;
                copy_window(
                    &sources,
                    window_starts[window as usize],
                    window_lengths[window as usize],
                    shared + ahead as u32 * stage_bytes,
                    unit,
                    config,
                );
            }
            commit_copies();
        }
    }

    let mut state = Array::<Accumulator>::new(comptime!(key_dim / 8));
    clear(&mut state, comptime!(key_dim / 8));
    let by_columns = lane_offset_by_columns(lane, key_dim);
    let by_rows = lane_offset_by_rows(lane, key_dim);
    let slice_by_columns = plane * 32 + lane_offset_by_columns(lane, comptime!(config.columns()));
    let exit_bytes = comptime!(2 * key_dim as u64);
    let mut slot = 0u32;
    for step in 0..windows {
        let window = end - 1 - step;
        // Copies that others started are waited for by them.
        wait_copies(comptime!(config.stages - 2));
        // The last window's stage is free, and this one's is filled.
        sync_cube();
        if copies {
            let ahead = step + (stages - 1);
            if ahead < windows {
                let mut to = slot + (stages - 1);
                if to >= stages {
                    to -= stages;
                }
                let window = end - 1 - ahead;
                copy_window(
                    &sources,
                    window_starts[window as usize],
                    window_lengths[window as usize],
                    shared + to * stage_bytes,
                    unit,
                    config,
                );
            }
            commit_copies();
        } else {
            let keys = shared + slot * stage_bytes;
            let queries = keys + comptime!(config.key_tile() as u32);
            let weights = queries + comptime!(config.key_tile() as u32);
            let outputs = weights + comptime!(config.key_tile() as u32);
            let values = outputs + comptime!(config.slice_tile() as u32);
            let decays = values + comptime!(config.slice_tile() as u32);
            let start = window_starts[window as usize];
            let length = window_lengths[window as usize];

            let of_state = window_slots[window as usize];
            if of_state != NO_SLOT {
                let children = slot_child_offsets[of_state as usize];
                for child in children..slot_child_offsets[of_state as usize + 1] {
                    let number = slot_children[child as usize];
                    let from = state_address(
                        gradients_of_runs,
                        number,
                        head,
                        value_heads,
                        column,
                        lane,
                        config,
                    );
                    add_state(&mut state, from, config);
                }
                if of_state < requested {
                    let states = global_address::<f32>(grad_states);
                    let from =
                        state_address(states, of_state, head, value_heads, column, lane, config);
                    add_state(&mut state, from, config);
                }
            }

            let mut product = Array::<Accumulator>::new(comptime!(2 * TILES));
            clear(&mut product, comptime!(2 * TILES));
            let exit = (step > 0 && !siblings) || of_state != NO_SLOT;
            if UNIT_POS_X == 0 && slice == 0 && head == 0 {
                has_exit[window as usize] = u32::cast_from(exit);
            }
            if exit {
                let rounded = round_state::<E>(&state, config);
                let of_exit = (u64::cast_from(window) * u64::cast_from(value_heads)
                    + u64::cast_from(head))
                    * comptime!(value_dim as u64)
                    + u64::cast_from(column);
                write_rounded_state(
                    &rounded,
                    staging,
                    output_address(exits) + of_exit * exit_bytes,
                    lane,
                    config,
                );
                multiply_state::<E>(&mut product, &rounded, keys + by_columns, config);
            }
            let mut of_u = Array::<Fragment>::new(TILES);
            let mut negative = Array::<Fragment>::new(TILES);
            let mut of_outputs = Array::<Fragment>::new(TILES);
            let from_entry = decays + lane % 4 * 8;
            #[unroll]
            for k in 0..TILES {
                let offset = comptime!(16 * k * row_stride(config.columns()));
                let packed = load_block(outputs + slice_by_columns, offset, true);
                let (low, high) = unpack_left::<E>(packed);
                of_outputs[k] = scale_columns::<E>(low, high, scale, from_entry, comptime!(64 * k));

                let packed = load_block(values + slice_by_columns, offset, true);
                let (low, high) = unpack_left::<E>(packed);
                let to_last = from_entry + comptime!(4 * ROWS as u32);
                let low = add_scaled(low, product[2 * k], to_last, comptime!(64 * k));
                let high = add_scaled(high, product[2 * k + 1], to_last, comptime!(64 * k + 32));
                let operand = pack_left::<E>(low, high);
                of_u[k] = operand;
                negative[k] = negate(operand);
            }
            write_columns(
                &of_u,
                values + plane * 32,
                sources.grad_u
                    + u64::cast_from(start) * sources.value_row_bytes
                    + u64::cast_from(plane * 32),
                sources.value_row_bytes,
                lane,
                length,
                config,
            );
            // The gradients of siblings' entry add up.
            if !siblings {
                let decay = load_number(decays + (length - 1) * 4, 0usize);
                scale_state(&mut state, decay, config);
            }
            add_to_state::<E>(&mut state, &of_outputs, queries + by_rows, config);
            add_to_state::<E>(&mut state, &negative, weights + by_rows, config);
        }
        slot += 1;
        if slot == stages {
            slot = 0u32;
        }
    }
    wait_copies(0usize);
    if !copies && run_entries[run as usize] != NO_ENTRY {
        let to = state_address(
            gradients_of_runs,
            run,
            head,
            value_heads,
            column,
            lane,
            config,
        );
        write_state(&state, to, config);
    }
}

/// An accumulator of transposed rows plus another whose columns (rows of the window) are times
/// their factors; `factors`: the address of the first column's, plus the lane's 8 bytes.
#[cube]
fn add_scaled(
    sum: Accumulator,
    term: Accumulator,
    factors: u32,
    #[comptime] offset: usize,
) -> Accumulator {
    let factors = load_pair(factors, offset);
    let mut result = Accumulator::empty();
    #[unroll]
    for i in 0..4usize {
        let factor = f32::reinterpret(factors.extract(comptime!(i % 2)));
        result.insert(i, sum.extract(i) + term.extract(i) * factor);
    }
    result
}
