//! The states along runs, recomputed: all slots are known, so that one launch does all runs.

use burn_tree_kit::cube::matrix::*;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::blocks::*;
use super::super::states::*;

impl PathConfig {
    /// Bytes of shared memory of a cube of [`gated_delta_rule_backward_scan`].
    pub(crate) const fn scan_shared_bytes(self) -> usize {
        self.stages * self.stage_bytes(2, 1) + self.staging_bytes()
    }
}

/// What a cube copies from.
#[derive(CubeType, Clone, Copy)]
struct Sources {
    key: u64,
    w: u64,
    u: u64,
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
    let w = stage + comptime!(config.key_tile() as u32);
    let u = w + comptime!(config.key_tile() as u32);
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
        sources.w + row * sources.w_row_bytes,
        sources.w_row_bytes,
        w,
        unit,
        length,
        ROWS,
        config.key_dim,
        units,
    );
    copy_spread_rows(
        sources.u + row * sources.value_row_bytes,
        sources.value_row_bytes,
        u,
        unit,
        length,
        ROWS,
        comptime!(config.columns()),
        units,
    );
    let decays = u + comptime!(config.slice_tile() as u32);
    copy_decays(
        sources.decays + row * 4,
        sources.part,
        decays,
        unit,
        length,
        config,
    );
}

/// Along each run, `U = U0 - W H` in place of `U0` in `u`, with `H` the state before a window;
/// `H = e^G_last H + K^T diag(decay to the last token) U` after it.
///
/// * `key` `[R, HK, DK]`; `w`, `u` and `decays`: of
///   [`gated_delta_rule_backward_local`](super::local::gated_delta_rule_backward_local)
/// * `states` `[S, HV, DK, DV]`, `initial_states` `[G, HV, DK, DV]`: what runs start from
/// * `entries` `[W, HV, DV, DK]`: `H`, rounded and transposed, of the windows that `entry_windows`
///   `[W]` names for all windows: siblings share the first one's
///
/// Cubes: x = the slices of value columns of the first head of the first run, of the next head, ..,
/// of the next run.
#[cube(launch_unchecked)]
pub(crate) fn gated_delta_rule_backward_scan<E: Float>(
    key: &[E],
    w: &[E],
    u: &mut [E],
    decays: &[f32],
    states: &[f32],
    initial_states: &[f32],
    window_starts: &[u32],
    window_lengths: &[u32],
    run_offsets: &[u32],
    run_entries: &[u32],
    run_siblings: &[u32],
    entries: &mut [Vector<u32, Const<4>>],
    entry_windows: &mut [u32],
    rows: u32,
    key_heads: u32,
    value_heads: u32,
    #[comptime] config: PathConfig,
    #[define(E)] _dtype: ElemType,
) {
    let (key_dim, value_dim) = comptime!((config.key_dim, config.value_dim));
    let stages = comptime!(config.stages as u32);
    let stage_bytes = comptime!(config.stage_bytes(2, 1) as u32);
    let slices = comptime!(config.slices() as u32);
    let slice = CUBE_POS_X % slices;
    let head = CUBE_POS_X / slices % value_heads;
    let run = CUBE_POS_X / slices / value_heads;
    let first = run_offsets[run as usize];
    let end = run_offsets[run as usize + 1];
    let entry = run_entries[run as usize];
    let siblings = run_siblings[run as usize] == 1;

    let lane = UNIT_POS_X % 32;
    let plane = UNIT_POS_X / 32;
    let first_column = slice * comptime!(config.columns() as u32);
    let column = first_column + plane * 16;
    let memory =
        Shared::<[u32]>::new_aligned_slice(comptime!(config.scan_shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let staging =
        shared + stages * stage_bytes + plane * comptime!(tile_bytes(16, config.key_dim) as u32);

    let key_head = head / (value_heads / key_heads);
    let values = output_address(u);
    let in_row = u64::cast_from(2 * first_column);
    let sources = Sources {
        key: global_address::<E>(key) + row_offset(0u32, key_heads, key_head, key_dim),
        w: global_address::<E>(w) + row_offset(0u32, value_heads, head, key_dim),
        u: values + row_offset(0u32, value_heads, head, value_dim) + in_row,
        decays: global_address::<f32>(decays)
            + (u64::cast_from(value_heads) + u64::cast_from(head)) * u64::cast_from(rows) * 4,
        key_row_bytes: row_bytes(key_heads, key_dim),
        w_row_bytes: row_bytes(value_heads, key_dim),
        value_row_bytes: row_bytes(value_heads, value_dim),
        part: u64::cast_from(value_heads) * u64::cast_from(rows) * 4,
    };
    let copies = UNIT_POS_X >= comptime!(config.copying() as u32);
    let unit = UNIT_POS_X % comptime!(config.copying() as u32);
    if copies {
        #[unroll]
        for ahead in 0..comptime!(config.stages - 1) {
            let window = first + ahead as u32;
            if window < end {
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
    if !copies && entry != NO_ENTRY {
        let (source, number) = if entry <= LAST_SLOT {
            (global_address::<f32>(states), entry)
        } else {
            (global_address::<f32>(initial_states), FIRST_INITIAL - entry)
        };
        let from = state_address(source, number, head, value_heads, column, lane, config);
        add_state(&mut state, from, config);
    }

    let by_columns = lane_offset_by_columns(lane, key_dim);
    let by_rows = lane_offset_by_rows(lane, key_dim);
    let slice_by_columns = plane * 32 + lane_offset_by_columns(lane, comptime!(config.columns()));
    let entry_bytes = comptime!(2 * key_dim as u64);
    let mut slot = 0u32;
    for window in first..end {
        // Copies that others started are waited for by them.
        wait_copies(comptime!(config.stages - 2));
        // The last window's stage is free, and this one's is filled.
        sync_cube();
        if copies {
            let ahead = window + (stages - 1);
            if ahead < end {
                let mut to = slot + (stages - 1);
                if to >= stages {
                    to -= stages;
                }
                copy_window(
                    &sources,
                    window_starts[ahead as usize],
                    window_lengths[ahead as usize],
                    shared + to * stage_bytes,
                    unit,
                    config,
                );
            }
            commit_copies();
        } else {
            let keys = shared + slot * stage_bytes;
            let weights = keys + comptime!(config.key_tile() as u32);
            let values = weights + comptime!(config.key_tile() as u32);
            let decays = values + comptime!(config.slice_tile() as u32);
            let start = window_starts[window as usize];
            let length = window_lengths[window as usize];

            let rounded = round_state::<E>(&state, config);
            let of_entry = (u64::cast_from(window) * u64::cast_from(value_heads)
                + u64::cast_from(head))
                * comptime!(value_dim as u64)
                + u64::cast_from(column);
            let own = window == first || !siblings;
            if UNIT_POS_X == 0 && slice == 0 && head == 0 {
                entry_windows[window as usize] = select(own, window, first);
            }
            if own {
                write_rounded_state(
                    &rounded,
                    staging,
                    output_address(entries) + of_entry * entry_bytes,
                    lane,
                    config,
                );
            }

            let mut product = Array::<Accumulator>::new(comptime!(2 * TILES));
            clear(&mut product, comptime!(2 * TILES));
            multiply_state::<E>(&mut product, &rounded, weights + by_columns, config);
            let mut of_u = Array::<Fragment>::new(TILES);
            let mut decayed = Array::<Fragment>::new(TILES);
            #[unroll]
            for k in 0..TILES {
                let offset = comptime!(16 * k * row_stride(config.columns()));
                let packed = load_block(values + slice_by_columns, offset, true);
                let (low, high) = unpack_left::<E>(packed);
                let low = low - product[2 * k];
                let high = high - product[2 * k + 1];
                of_u[k] = pack_left::<E>(low, high);
                let to_last = decays + comptime!(4 * ROWS as u32) + lane % 4 * 8;
                decayed[k] = scale_columns::<E>(low, high, 1.0f32, to_last, comptime!(64 * k));
            }
            write_columns(
                &of_u,
                values + plane * 32,
                sources.u
                    + u64::cast_from(start) * sources.value_row_bytes
                    + u64::cast_from(plane * 32),
                sources.value_row_bytes,
                lane,
                length,
                config,
            );
            // Nobody reads the state after a run.
            if !siblings && window + 1 < end {
                let decay = load_number(decays + (length - 1) * 4, 0usize);
                scale_state(&mut state, decay, config);
                add_to_state::<E>(&mut state, &decayed, keys + by_rows, config);
            }
        }
        slot += 1;
        if slot == stages {
            slot = 0u32;
        }
    }
    wait_copies(0usize);
}
