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

use super::super::arguments::{Level, PathLists, Sizes};
use super::super::blocks::*;
use super::super::place::*;
use super::super::rows::*;
use super::super::states::*;
use super::copies::*;
use super::step::*;

impl PathConfig {
    /// Bytes of a window that the sequence reads: keys, mixing, values, decays.
    pub(super) const fn update_bytes(self) -> usize {
        self.key_tile() + SQUARE + self.slice_tile() + 2 * NUMBERS
    }

    /// Bytes of a window that its outputs need: queries, scores, decays.
    pub(super) const fn output_bytes(self) -> usize {
        self.key_tile() + SQUARE + NUMBERS
    }

    /// Where the windows for outputs start.
    pub(super) const fn outputs_at(self) -> usize {
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

/// Tensors that are read.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PathInputs<E: Float> {
    /// `[R, HK, DK]`
    pub query: Box<[E]>,
    /// `[R, HK, DK]`
    pub key: Box<[E]>,
    /// `[R, HV, DV]`
    pub value: Box<[E]>,
    /// Of [`gated_delta_rule_local`](super::local::gated_delta_rule_local).
    pub mixing: Box<[E]>,
    /// Of the same.
    pub scores: Box<[E]>,
    /// Of the same.
    pub decays: Box<[f32]>,
    /// `[G, HV, DK, DV]`
    pub initial_states: Box<[f32]>,
}

/// Tensors that are written.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PathResults<E: Float> {
    /// `[S, HV, DK, DV]`: slots, from which paths start and into which the states after windows
    /// with a slot are written.
    pub states: Box<[f32]>,
    /// `[R, HV, DV]`
    pub output: Box<[E]>,
}

/// Outputs and the states of slots. `window_slots` `[W]` are the slots of the states after windows,
/// or [`NO_SLOT`].
///
/// Cubes: x = the slices of value columns of the first head of run `first_run`, of the next head,
/// .., of the next run.
#[cube(launch_unchecked)]
pub(crate) fn gated_delta_rule_paths<E: Float>(
    inputs: &PathInputs<E>,
    lists: &PathLists,
    window_slots: &[u32],
    results: &mut PathResults<E>,
    sizes: Sizes,
    level: Level,
    #[comptime] config: PathConfig,
    #[define(E)] _dtype: ElemType,
) {
    // The window before that at hand.
    let before = comptime!(config.stages);
    let stages = comptime!(config.stages as u32);
    let update_bytes = comptime!(config.update_bytes() as u32);
    let output_bytes = comptime!(config.output_bytes() as u32);
    let windows = &lists.windows;
    let place = place(&lists.runs, &sizes, level.first_run, config);
    let (first, end) = (place.first, place.end);
    let siblings = lists.runs.siblings[place.run as usize];
    let memory =
        Shared::<[u32]>::new_aligned_slice(comptime!(config.paths_shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let for_outputs = shared + comptime!(config.outputs_at() as u32);
    let mut exchange = shared
        + comptime!(config.exchanges_at() as u32)
        + place.plane * comptime!(config.exchange_bytes() as u32)
        + place.lane * CHUNK as u32;
    let mut last_exchange = exchange + comptime!((config.planes * config.exchange_bytes()) as u32);
    let slots = output_address(&mut results.states);
    let sources = sources::<E>(inputs, &sizes, &place, config);

    // Of the copying planes.
    let mut copied = new_copied_windows(config);
    // Of the computing planes: their state, and the window at hand.
    let mut state = zero_state(config);
    let mut length = windows.lengths[first as usize];
    let mut slot = window_slots[first as usize];
    if place.copies {
        load_first_windows(&mut copied, windows, &place, config);
        copy_first_windows(&copied, &sources, &place, shared, config);
    } else {
        add_entry(
            &mut state,
            &lists.runs,
            slots,
            &inputs.initial_states,
            &place,
            config,
        );
    }

    // Places of the window at hand, of the one before and of the one before that.
    let mut stage = 0u32;
    let mut last_stage = comptime!(stages - 1).runtime();
    for window in first..end + 1 {
        // Copies that others started are waited for by them.
        wait_copies(comptime!(config.stages - 2));
        // What the window before has used is free; what this one needs is there.
        sync_cube();
        if place.copies {
            let (next_start, next_length) = window_ahead(windows, window, end, config);
            copy_next_windows(
                &copied, &sources, &place, window, last_stage, shared, config,
            );
            if window > first {
                let length = copied.lengths[before];
                let staged = StagedWindow {
                    stage: for_outputs + last_stage * output_bytes,
                    exchange: last_exchange,
                    length,
                };
                let output = output_address(&mut results.output);
                let output = plane_rows(output, copied.starts[before], &place, config);
                write_output::<E>(&staged, &output, place.lane, level.scale, config);
            }
            shift_windows(&mut copied, next_start, next_length, config);
        } else if window < end {
            let next = min(window + 1, end - 1) as usize;
            let next_length = windows.lengths[next];
            let next_slot = window_slots[next];
            let goes_on = (siblings == 0 && window + 1 < end) || slot != NO_SLOT;
            let staged = StagedWindow {
                stage: shared + stage * update_bytes,
                exchange,
                length,
            };
            update::<E>(&mut state, &staged, &place, goes_on, config);
            if slot != NO_SLOT {
                write_state(&state, state_address(slots, slot, &place, config), config);
            }
            length = next_length;
            slot = next_slot;
        }
        last_stage = stage;
        stage += 1;
        if stage == stages {
            stage = 0u32;
        }
        let other = exchange;
        exchange = last_exchange;
        last_exchange = other;
    }
    wait_copies(0usize);
}

/// The plane's columns of rows from `row` on of the tensor `[R, HV, DV]` at `address`.
#[cube]
fn plane_rows(address: u64, row: u32, place: &Place, #[comptime] config: PathConfig) -> HeadRows {
    let rows = head_rows(
        address,
        0u32,
        place.value_heads,
        place.head,
        config.value_dim,
    );
    columns_from(&rows_from(&rows, row), 2 * place.column)
}
