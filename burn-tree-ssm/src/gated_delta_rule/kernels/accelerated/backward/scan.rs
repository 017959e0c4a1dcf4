//! The states along runs, recomputed: all slots are known, so that one launch does all runs.

use burn_tree_kit::cube::matrix::*;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::{PathLists, Sizes};
use super::super::blocks::*;
use super::super::place::*;
use super::super::rows::*;
use super::super::states::*;
use super::super::words::*;
use super::stages::*;

/// The stages of the kernel: keys and `w`, `u`.
const fn stages(path: PathConfig) -> Stages {
    Stages {
        path,
        keys: 2,
        slices: 1,
        reversed: false,
    }
}

impl PathConfig {
    /// Bytes of shared memory of a cube of [`gated_delta_rule_backward_scan`].
    pub(crate) const fn scan_shared_bytes(self) -> usize {
        stages(self).shared_bytes()
    }
}

/// Tensors that are read.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ScanInputs<E: Float> {
    /// `[R, HK, DK]`
    pub key: Box<[E]>,
    /// Of [`gated_delta_rule_backward_local`](super::local::gated_delta_rule_backward_local).
    pub w: Box<[E]>,
    /// Of the same.
    pub decays: Box<[f32]>,
    /// `[S, HV, DK, DV]`, from which runs start.
    pub states: Box<[f32]>,
    /// `[G, HV, DK, DV]`, from which others do.
    pub initial_states: Box<[f32]>,
}

/// Tensors that are written.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ScanResults<E: Float> {
    /// `U0`, of which `U` takes the place.
    pub u: Box<[E]>,
    /// `[W, HV, DV, DK]` `H`, rounded and transposed, of the windows that `entry_windows` names.
    pub entries: Box<[Vector<u32, Const<4>>]>,
    /// `[W]` for each window: siblings share the first one's.
    pub entry_windows: Box<[u32]>,
}

/// Along each run, `U = U0 - W H` in place of `U0` in `u`, with `H` the state before a window;
/// `H = e^G_last H + K^T diag(decay to the last token) U` after it.
///
/// Cubes: x = the slices of value columns of the first head of the first run, of the next head, ..,
/// of the next run.
#[cube(launch_unchecked)]
pub(crate) fn gated_delta_rule_backward_scan<E: Float>(
    inputs: &ScanInputs<E>,
    lists: &PathLists,
    results: &mut ScanResults<E>,
    sizes: Sizes,
    #[comptime] config: PathConfig,
    #[define(E)] _dtype: ElemType,
) {
    let stages = comptime!(stages(config));
    let place = place(&lists.runs, &sizes, 0u32, config);
    let siblings = lists.runs.siblings[place.run as usize] == 1;
    let memory = Shared::<[u32]>::new_aligned_slice(comptime!(stages.shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let staging = staging_rows(shared, &place, stages);
    let values = output_address(&mut results.u);
    let u = slice_rows(values, &sizes, &place, config);
    let sources = sources::<E>(inputs, values, &sizes, &place, config);
    let mut state = zero_state(config);
    if place.copies {
        copy_first_windows(&sources, &lists.windows, &place, shared, stages);
    } else {
        let slots = global_address::<f32>(&inputs.states);
        add_entry(
            &mut state,
            &lists.runs,
            slots,
            &inputs.initial_states,
            &place,
            config,
        );
    }

    let mut slot = 0u32;
    for step in 0..place.end - place.first {
        let window = window_of_step(&place, step, stages);
        // Copies that others started are waited for by them.
        wait_copies(comptime!(config.stages - 2));
        // The last window's stage is free, and this one's is filled.
        sync_cube();
        if place.copies {
            copy_next_window(&sources, &lists.windows, &place, step, slot, shared, stages);
        } else {
            let stage = shared + slot * comptime!(stages.bytes() as u32);
            let length = lists.windows.lengths[window as usize];
            let rounded = round_state::<E>(&state, config);
            write_entry::<E>(results, &rounded, &place, window, siblings, staging, config);
            let rows = rows_from(&u, lists.windows.starts[window as usize]);
            let decayed = write_updates::<E>(&rounded, stage, &rows, &place, length, stages);
            // No window reads the state after a run.
            if !siblings && window + 1 < place.end {
                let decays = stage + comptime!(stages.decays_at() as u32);
                let decay = load_number(decays + (length - 1) * 4, 0usize);
                scale_state(&mut state, decay, config);
                let keys = stage + lane_offset_by_rows(place.lane, config.key_dim);
                add_to_state::<E>(&mut state, &decayed, keys, config);
            }
        }
        slot = next_slot(slot, stages);
    }
    wait_copies(0usize);
}

/// What the cube copies from; `u` is the address of that tensor.
#[cube]
fn sources<E: Float>(
    inputs: &ScanInputs<E>,
    u: u64,
    sizes: &Sizes,
    place: &Place,
    #[comptime] config: PathConfig,
) -> Sources {
    let (key, w) = (
        global_address::<E>(&inputs.key),
        global_address::<E>(&inputs.w),
    );
    let mut keys = Sequence::<HeadRows>::new();
    keys.push(head_rows(
        key,
        0u32,
        sizes.key_heads,
        place.key_head,
        config.key_dim,
    ));
    keys.push(head_rows(
        w,
        0u32,
        sizes.value_heads,
        place.head,
        config.key_dim,
    ));
    let mut slices = Sequence::<HeadRows>::new();
    slices.push(slice_rows(u, sizes, place, config));
    Sources {
        keys,
        slices,
        decays: head_decays(&inputs.decays, sizes, place),
    }
}

/// Writes the plane's rounded state as that before a window, unless it is the one of the window's
/// first sibling.
#[cube]
fn write_entry<E: Float>(
    results: &mut ScanResults<E>,
    rounded: &Array<Fragment>,
    place: &Place,
    window: u32,
    siblings: bool,
    staging: u32,
    #[comptime] config: PathConfig,
) {
    let own = window == place.first || !siblings;
    if UNIT_POS_X == 0 && place.slice == 0 && place.head == 0 {
        results.entry_windows[window as usize] = select(own, window, place.first);
    }
    if own {
        let entries = output_address(&mut results.entries);
        let rows = rounded_state_rows(entries, window, place, config);
        write_rounded_state(rounded, staging, &rows, place.lane, config);
    }
}

/// Writes `U = U0 - W H`, of the plane's columns of a window in a stage, to the rows `u`. Returns
/// it, transposed, times the decays to the last token.
#[cube]
fn write_updates<E: Float>(
    rounded: &Array<Fragment>,
    stage: u32,
    u: &HeadRows,
    place: &Place,
    length: u32,
    #[comptime] stages: Stages,
) -> Array<Fragment> {
    let config = comptime!(stages.path);
    let lane = place.lane;
    let weights = stage + comptime!(stages.key_at(1) as u32);
    let values = stage + comptime!(stages.slice_at(0) as u32) + place.plane * 32;
    let to_last = stage + comptime!((stages.decays_at() + 4 * ROWS) as u32) + lane % 4 * 8;
    let mut product = Array::<Accumulator>::new(comptime!(2 * TILES));
    clear(&mut product, comptime!(2 * TILES));
    let by_columns = weights + lane_offset_by_columns(lane, config.key_dim);
    multiply_state::<E>(&mut product, rounded, by_columns, config);
    let by_columns = values + lane_offset_by_columns(lane, comptime!(config.columns()));
    let mut of_u = Array::<Fragment>::new(TILES);
    let mut decayed = Array::<Fragment>::new(TILES);
    #[unroll]
    for k in 0..TILES {
        let offset = comptime!(16 * k * row_stride(config.columns()));
        let packed = load_block(by_columns, offset, true);
        let (low, high) = unpack_left::<E>(packed);
        let low = low - product[2 * k];
        let high = high - product[2 * k + 1];
        of_u[k] = pack_left::<E>(low, high);
        decayed[k] = scale_columns::<E>(low, high, 1.0f32, to_last, comptime!(64 * k));
    }
    let u = columns_from(u, place.plane * 32);
    write_columns(&of_u, values, &u, lane, length, config);
    decayed
}
