//! The gradients of the states along runs, from their ends.

use burn_tree_kit::cube::matrix::*;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::{Level, PathLists, Sizes};
use super::super::blocks::*;
use super::super::place::*;
use super::super::rows::*;
use super::super::states::*;
use super::super::words::*;
use super::stages::*;

/// The stages of the kernel: keys, queries and `w`, gradients of outputs and of `u`.
const fn stages(path: PathConfig) -> Stages {
    Stages {
        path,
        keys: 3,
        slices: 2,
        reversed: true,
    }
}

impl PathConfig {
    /// Bytes of shared memory of a cube of [`gated_delta_rule_backward_reverse_scan`].
    pub(crate) const fn reverse_shared_bytes(self) -> usize {
        stages(self).shared_bytes()
    }
}

/// Tensors that are read.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ReverseScanInputs<E: Float> {
    /// `[R, HK, DK]`
    pub query: Box<[E]>,
    /// `[R, HK, DK]`
    pub key: Box<[E]>,
    /// Of [`gated_delta_rule_backward_local`](super::local::gated_delta_rule_backward_local).
    pub w: Box<[E]>,
    /// `[R, HV, DV]`
    pub grad_output: Box<[E]>,
    /// Of the same kernel as `w`.
    pub decays: Box<[f32]>,
    /// `[X, HV, DK, DV]` gradients of the states of the first slots, which were requested.
    pub grad_states: Box<[f32]>,
}

/// Slots, and the runs that start from each.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct SlotLists {
    /// `[W]` the slot of the state after each window, or [`NO_SLOT`].
    pub of_windows: Box<[u32]>,
    /// `[S + 1]` where the children of each slot start.
    pub child_offsets: Box<[u32]>,
    /// Runs.
    pub children: Box<[u32]>,
    /// Slots whose states were requested: the first ones.
    pub requested: u32,
}

/// Tensors that are written.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ReverseScanResults<E: Float> {
    /// `[R, HV, DV]` what a window's outputs add to `dU`, which takes its place.
    pub grad_u: Box<[E]>,
    /// `[W, HV, DV, DK]` every window's `dS`, rounded and transposed; not set where it is 0 because
    /// its path ends without a slot.
    pub exits: Box<[Vector<u32, Const<4>>]>,
    /// `[W]` whether it is set.
    pub has_exit: Box<[u32]>,
    /// `[Q, HV, DK, DV]` `dH` of each run's first window, or the sum over siblings, where the run
    /// has an entry.
    pub run_gradients: Box<[f32]>,
}

/// Along each run from its end, with `dS` the gradient of the state after a window and `dH` of that
/// before it:
/// `dU = grad_u + diag(decay to the last token) K dS`, in place of `grad_u`, and
/// `dH = e^G_last dS + (e^G scale Q)^T dO - W^T dU`.
///
/// To the `dS` of a window with a slot are added the `run_gradients` of the slot's children, in
/// their order, which earlier launches wrote, and the gradient of the slot's state if it was
/// requested.
///
/// Cubes: x = the slices of value columns of the first head of run `first_run`, of the next head,
/// .., of the next run.
#[cube(launch_unchecked)]
pub(crate) fn gated_delta_rule_backward_reverse_scan<E: Float>(
    inputs: &ReverseScanInputs<E>,
    lists: &PathLists,
    slots: &SlotLists,
    results: &mut ReverseScanResults<E>,
    sizes: Sizes,
    level: Level,
    #[comptime] config: PathConfig,
    #[define(E)] _dtype: ElemType,
) {
    let stages = comptime!(stages(config));
    let place = place(&lists.runs, &sizes, level.first_run, config);
    let siblings = lists.runs.siblings[place.run as usize] == 1;
    let memory = Shared::<[u32]>::new_aligned_slice(comptime!(stages.shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let staging = staging_rows(shared, &place, stages);
    let values = output_address(&mut results.grad_u);
    let grad_u = slice_rows(values, &sizes, &place, config);
    let sources = sources::<E>(inputs, values, &sizes, &place, config);
    let run_gradients = output_address(&mut results.run_gradients);
    if place.copies {
        copy_first_windows(&sources, &lists.windows, &place, shared, stages);
    }

    let mut state = zero_state(config);
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
            let of_state = slots.of_windows[window as usize];
            if of_state != NO_SLOT {
                add_children(&mut state, slots, of_state, run_gradients, &place, config);
                if of_state < slots.requested {
                    let states = global_address::<f32>(&inputs.grad_states);
                    add_state(
                        &mut state,
                        state_address(states, of_state, &place, config),
                        config,
                    );
                }
            }

            let exit = (step > 0 && !siblings) || of_state != NO_SLOT;
            let mut product = Array::<Accumulator>::new(comptime!(2 * TILES));
            clear(&mut product, comptime!(2 * TILES));
            if exit {
                let rounded = round_state::<E>(&state, config);
                let exits = output_address(&mut results.exits);
                let rows = rounded_state_rows(exits, window, &place, config);
                write_rounded_state(&rounded, staging, &rows, place.lane, config);
                let keys = stage + lane_offset_by_columns(place.lane, config.key_dim);
                multiply_state::<E>(&mut product, &rounded, keys, config);
            }
            if UNIT_POS_X == 0 && place.slice == 0 && place.head == 0 {
                results.has_exit[window as usize] = u32::cast_from(exit);
            }
            let rows = rows_from(&grad_u, lists.windows.starts[window as usize]);
            let negative = write_gradients::<E>(&product, stage, &rows, &place, length, stages);
            // The gradients of siblings' entry add up.
            if !siblings {
                let decays = stage + comptime!(stages.decays_at() as u32);
                let decay = load_number(decays + (length - 1) * 4, 0usize);
                scale_state(&mut state, decay, config);
            }
            let of_outputs = scale_outputs::<E>(stage, level.scale, &place, stages);
            let by_rows = stage + lane_offset_by_rows(place.lane, config.key_dim);
            let queries = by_rows + comptime!(stages.key_at(1) as u32);
            add_to_state::<E>(&mut state, &of_outputs, queries, config);
            let weights = by_rows + comptime!(stages.key_at(2) as u32);
            add_to_state::<E>(&mut state, &negative, weights, config);
        }
        slot = next_slot(slot, stages);
    }
    wait_copies(0usize);
    if !place.copies && lists.runs.entries[place.run as usize] != NO_ENTRY {
        write_state(
            &state,
            state_address(run_gradients, place.run, &place, config),
            config,
        );
    }
}

/// What the cube copies from; `grad_u` is the address of that tensor.
#[cube]
fn sources<E: Float>(
    inputs: &ReverseScanInputs<E>,
    grad_u: u64,
    sizes: &Sizes,
    place: &Place,
    #[comptime] config: PathConfig,
) -> Sources {
    let (key, query, w) = (
        global_address::<E>(&inputs.key),
        global_address::<E>(&inputs.query),
        global_address::<E>(&inputs.w),
    );
    let grad_output = global_address::<E>(&inputs.grad_output);
    let mut keys = Sequence::<HeadRows>::new();
    keys.push(head_rows(
        key,
        0u32,
        sizes.key_heads,
        place.key_head,
        config.key_dim,
    ));
    keys.push(head_rows(
        query,
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
    slices.push(slice_rows(grad_output, sizes, place, config));
    slices.push(slice_rows(grad_u, sizes, place, config));
    Sources {
        keys,
        slices,
        decays: head_decays(&inputs.decays, sizes, place),
    }
}

/// Adds to a plane's state the gradients of the runs that start from a slot, which other launches
/// wrote to `run_gradients` (its address).
#[cube]
fn add_children(
    state: &mut Array<Accumulator>,
    slots: &SlotLists,
    slot: u32,
    run_gradients: u64,
    place: &Place,
    #[comptime] config: PathConfig,
) {
    let children = slots.child_offsets[slot as usize];
    for child in children..slots.child_offsets[slot as usize + 1] {
        let number = slots.children[child as usize];
        add_state(
            state,
            state_address(run_gradients, number, place, config),
            config,
        );
    }
}

/// The gradients of the outputs of a window in a stage, of the plane's columns, transposed, times
/// `scale` and the decays from the window's entry.
#[cube]
fn scale_outputs<E: Float>(
    stage: u32,
    scale: f32,
    place: &Place,
    #[comptime] stages: Stages,
) -> Array<Fragment> {
    let columns = comptime!(stages.path.columns());
    let outputs = stage
        + comptime!(stages.slice_at(0) as u32)
        + place.plane * 32
        + lane_offset_by_columns(place.lane, columns);
    let from_entry = stage + comptime!(stages.decays_at() as u32) + place.lane % 4 * 8;
    let mut scaled = Array::<Fragment>::new(TILES);
    #[unroll]
    for k in 0..TILES {
        let packed = load_block(outputs, comptime!(16 * k * row_stride(columns)), true);
        let (low, high) = unpack_left::<E>(packed);
        scaled[k] = scale_columns::<E>(low, high, scale, from_entry, comptime!(64 * k));
    }
    scaled
}

/// Writes `dU`, of the plane's columns of a window in a stage, to the rows `grad_u`; `product` is
/// that of keys and `dS`. Returns `-dU`, transposed.
#[cube]
fn write_gradients<E: Float>(
    product: &Array<Accumulator>,
    stage: u32,
    grad_u: &HeadRows,
    place: &Place,
    length: u32,
    #[comptime] stages: Stages,
) -> Array<Fragment> {
    let config = comptime!(stages.path);
    let columns = comptime!(config.columns());
    let lane = place.lane;
    let values = stage + comptime!(stages.slice_at(1) as u32) + place.plane * 32;
    let by_columns = values + lane_offset_by_columns(lane, columns);
    let to_last = stage + comptime!((stages.decays_at() + 4 * ROWS) as u32) + lane % 4 * 8;
    let mut of_u = Array::<Fragment>::new(TILES);
    let mut negative = Array::<Fragment>::new(TILES);
    #[unroll]
    for k in 0..TILES {
        let packed = load_block(by_columns, comptime!(16 * k * row_stride(columns)), true);
        let (low, high) = unpack_left::<E>(packed);
        let low = add_scaled(low, product[2 * k], to_last, comptime!(64 * k));
        let high = add_scaled(high, product[2 * k + 1], to_last, comptime!(64 * k + 32));
        let operand = pack_left::<E>(low, high);
        of_u[k] = operand;
        negative[k] = negate(operand);
    }
    let grad_u = columns_from(grad_u, place.plane * 32);
    write_columns(&of_u, values, &grad_u, lane, length, config);
    negative
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
