//! The tensors and launches of one backward pass.

use std::ops::Range;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{address_type, empty, units, zeros};
use cubecl::prelude::*;

use super::super::super::call::{Dims, Gradients, Inputs, Saved};
use super::super::arguments::LevelLaunch;
use super::super::blocks::WindowConfig;
use super::super::pass::{Launches, buffer};
use super::super::place::PathConfig;
use super::config::{path_config, path_shared_bytes};
use super::cube_window;
use super::gradients::{
    GradientInputsLaunch, GradientResultsLaunch, gated_delta_rule_backward_gradients,
};
use super::initial::gated_delta_rule_backward_initial;
use super::local::{self, LocalInputsLaunch, LocalResultsLaunch, gated_delta_rule_backward_local};
use super::reverse_scan::{
    ReverseScanInputsLaunch, ReverseScanResultsLaunch, SlotListsLaunch,
    gated_delta_rule_backward_reverse_scan,
};
use super::scan::{ScanInputsLaunch, ScanResultsLaunch, gated_delta_rule_backward_scan};
use crate::recurrence::TreeRecurrence;
use crate::recurrence::device::{RecurrenceList as List, RunList};

/// The tensors of a pass.
pub(super) struct Pass<'a> {
    launches: Launches<'a>,
    window: WindowConfig,

    inputs: Inputs,
    saved: Saved,
    grad_output: CubeTensor,
    grad_states: CubeTensor,

    /// `[R, HV, DK]`
    w: CubeTensor,
    /// `[R, HV, DV]`
    u: CubeTensor,
    /// `[R, HV, DV]`
    grad_u: CubeTensor,
    /// `[3, HV, R]`
    decays: CubeTensor,
    /// `[W, HV, DV, DK]`
    entries: CubeTensor,
    /// `[W, HV, DV, DK]`
    exits: CubeTensor,
    /// `[W]`
    entry_windows: CubeTensor,
    /// `[W]`
    has_exit: CubeTensor,
    /// `[Q, HV, DK, DV]`
    run_gradients: CubeTensor,
    pub(super) gradients: Gradients,
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        inputs: Inputs,
        saved: Saved,
        (grad_output, grad_states): (CubeTensor, CubeTensor),
        recurrence: &'a TreeRecurrence,
        scale: f64,
    ) -> Self {
        let launches = Launches::new(&inputs, recurrence, scale);
        let Dims {
            rows,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = launches.dims;
        let near = &inputs.value;
        let rows_of = |dim| empty(near, [rows, value_heads, dim], near.dtype);
        // An empty tensor cannot be bound.
        let windows = recurrence.n_windows().max(1);
        let runs = recurrence.runs().len().max(1);
        let of_windows = [windows, value_heads, value_dim, key_dim];
        Self {
            window: WindowConfig { key_dim, value_dim },
            w: rows_of(key_dim),
            u: rows_of(value_dim),
            grad_u: rows_of(value_dim),
            decays: empty(near, [3, value_heads, rows], DType::F32),
            entries: empty(near, of_windows, near.dtype),
            exits: empty(near, of_windows, near.dtype),
            entry_windows: empty(near, [windows], DType::U32),
            has_exit: empty(near, [windows], DType::U32),
            run_gradients: empty(near, [runs, value_heads, key_dim, value_dim], DType::F32),
            gradients: new_gradients(&inputs, recurrence),
            launches,
            inputs,
            saved,
            grad_output,
            grad_states,
        }
    }

    /// The kernels along `runs` runs, and their cubes.
    fn along_runs(&self, runs: usize) -> (PathConfig, CubeCount) {
        let hardware = &self.launches.client.properties().hardware;
        let heads = runs * self.launches.dims.value_heads;
        let pairs = path_config(&self.window, true, 3);
        let processors = hardware.num_streaming_multiprocessors.unwrap_or(0);
        let few = heads * pairs.slices() <= 2 * processors as usize;
        let config = match few {
            // Few cubes have their processors to themselves.
            true if path_shared_bytes(pairs) <= hardware.max_shared_memory_size => pairs,
            _ => path_config(&self.window, few, 2),
        };
        (config, self.launches.cubes(heads * config.slices()))
    }

    pub(super) fn local(&self) {
        let launches = &self.launches;
        let inputs = LocalInputsLaunch::new(
            buffer(&self.inputs.query),
            buffer(&self.inputs.key),
            buffer(&self.inputs.value),
            buffer(&self.grad_output),
            buffer(&self.saved.inverse),
        );
        let results = LocalResultsLaunch::new(
            buffer(&self.w),
            buffer(&self.u),
            buffer(&self.grad_u),
            buffer(&self.decays),
        );
        // SAFETY: the lists name rows, windows, paths and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_backward_local::launch_unchecked(
                &launches.client,
                launches.cubes(launches.recurrence.n_windows() * launches.dims.value_heads),
                CubeDim::new_1d(local::UNITS as u32),
                inputs,
                launches.gates(&self.inputs),
                launches.windows(),
                results,
                launches.sizes(),
                launches.scale,
                self.window,
                launches.stored,
            );
        }
    }

    pub(super) fn scan(&self) {
        let launches = &self.launches;
        let (config, cubes) = self.along_runs(launches.recurrence.runs().len());
        let inputs = ScanInputsLaunch::new(
            buffer(&self.inputs.key),
            buffer(&self.w),
            buffer(&self.decays),
            buffer(&self.saved.states),
            buffer(&self.inputs.initial_states),
        );
        let results = ScanResultsLaunch::new(
            buffer(&self.u),
            buffer(&self.entries),
            buffer(&self.entry_windows),
        );
        // SAFETY: the lists name rows, windows, paths and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_backward_scan::launch_unchecked(
                &launches.client,
                cubes,
                CubeDim::new_1d(config.units() as u32),
                inputs,
                launches.path_lists(),
                results,
                launches.sizes(),
                config,
                launches.stored,
            );
        }
    }

    pub(super) fn reverse_scan(&self, level: &Range<usize>) {
        let launches = &self.launches;
        let (config, cubes) = self.along_runs(level.len());
        let inputs = ReverseScanInputsLaunch::new(
            buffer(&self.inputs.query),
            buffer(&self.inputs.key),
            buffer(&self.w),
            buffer(&self.grad_output),
            buffer(&self.decays),
            buffer(&self.grad_states),
        );
        let slots = SlotListsLaunch::new(
            launches.list(List::WindowSlots),
            launches.run_list(RunList::SlotChildOffsets),
            launches.run_list(RunList::SlotChildren),
            launches.recurrence.requested_rows().len() as u32,
        );
        let results = ReverseScanResultsLaunch::new(
            buffer(&self.grad_u),
            buffer(&self.exits),
            buffer(&self.has_exit),
            buffer(&self.run_gradients),
        );
        // SAFETY: the lists name rows, windows, paths and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_backward_reverse_scan::launch_unchecked(
                &launches.client,
                cubes,
                CubeDim::new_1d(config.units() as u32),
                inputs,
                launches.path_lists(),
                slots,
                results,
                launches.sizes(),
                LevelLaunch::new(level.start as u32, launches.scale),
                config,
                launches.stored,
            );
        }
    }

    pub(super) fn gradients(&self) {
        let launches = &self.launches;
        let inputs = GradientInputsLaunch::new(
            buffer(&self.inputs.query),
            buffer(&self.inputs.key),
            buffer(&self.inputs.value),
            buffer(&self.grad_output),
            buffer(&self.saved.inverse),
            buffer(&self.inputs.beta),
            buffer(&self.decays),
            buffer(&self.u),
            buffer(&self.grad_u),
            buffer(&self.entries),
            buffer(&self.exits),
            launches.list(List::SubtreeEnds),
            buffer(&self.entry_windows),
            buffer(&self.has_exit),
        );
        let results = GradientResultsLaunch::new(
            buffer(&self.gradients.query),
            buffer(&self.gradients.key),
            buffer(&self.gradients.value),
            buffer(&self.gradients.log_decay),
            buffer(&self.gradients.beta),
        );
        // SAFETY: the lists name rows, windows, paths and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_backward_gradients::launch_unchecked(
                &launches.client,
                launches.cubes(launches.recurrence.n_windows() * launches.dims.key_heads),
                CubeDim::new_1d(cube_window::UNITS as u32),
                inputs,
                launches.windows(),
                results,
                launches.sizes(),
                launches.scale,
                self.window,
                launches.stored,
            );
        }
    }

    pub(super) fn initial(&self) {
        let launches = &self.launches;
        let states = launches.recurrence.n_initial_states();
        if states == 0 {
            return;
        }
        let dims = &launches.dims;
        let state = dims.value_heads * dims.key_dim * dims.value_dim / 4;
        let total = states * state;
        let gradient = &self.gradients.initial_states;
        let (count, dim) = units(&launches.client, total);
        // SAFETY: the lists name rows, windows, paths and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_backward_initial::launch_unchecked(
                &launches.client,
                count,
                dim,
                address_type(&[&self.run_gradients, gradient]),
                buffer(&self.run_gradients),
                launches.run_list(RunList::InitialChildOffsets),
                launches.run_list(RunList::InitialChildren),
                buffer(gradient),
                state,
                total,
            );
        }
    }
}

/// Gradients to be written; zeros where no kernel does.
fn new_gradients(inputs: &Inputs, recurrence: &TreeRecurrence) -> Gradients {
    let zeros = |of: &CubeTensor| zeros(of, of.meta.shape.clone(), of.dtype);
    let empty = |of: &CubeTensor| empty(of, of.meta.shape.clone(), of.dtype);
    // Rows of padding are written by no kernel.
    let padding = recurrence.has_padding();
    let gradient = |of: &CubeTensor| if padding { zeros(of) } else { empty(of) };
    Gradients {
        query: gradient(&inputs.query),
        key: gradient(&inputs.key),
        value: gradient(&inputs.value),
        log_decay: gradient(&inputs.log_decay),
        beta: gradient(&inputs.beta),
        initial_states: match recurrence.n_initial_states() {
            0 => zeros(&inputs.initial_states),
            _ => empty(&inputs.initial_states),
        },
    }
}
