//! The tensors and launches of one backward pass.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{address_type, elem, empty, units, zeros};
use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::super::call::{Dims, Gradients, Inputs, Saved};
use super::super::blocks::WindowConfig;
use super::super::states::PathConfig;
use super::config::{path_config, path_shared_bytes};
use super::cube_window;
use super::gradients::gated_delta_rule_backward_gradients;
use super::initial::gated_delta_rule_backward_initial;
use super::local::{self, gated_delta_rule_backward_local};
use super::reverse_scan::gated_delta_rule_backward_reverse_scan;
use super::scan::gated_delta_rule_backward_scan;
use crate::recurrence::TreeRecurrence;
use crate::recurrence::device::{DeviceLists, RecurrenceList as List, RunList};
/// What the launches share.
pub(super) struct Pass<'a> {
    recurrence: &'a TreeRecurrence,
    lists: Arc<DeviceLists<List>>,
    run_lists: Arc<DeviceLists<RunList>>,
    client: Client,
    dims: Dims,
    stored: ElemType,
    scale: f32,
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
        let dims = Dims::new(&inputs.query, &inputs.value);
        let Dims {
            rows,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = dims;
        let near = &inputs.value;
        let zeros = |of: &CubeTensor| zeros(of, of.meta.shape.clone(), of.dtype);
        // Rows of padding are written by no kernel.
        let padding = recurrence.has_padding();
        let gradient = |of: &CubeTensor| match padding {
            true => zeros(of),
            false => empty(of, of.meta.shape.clone(), of.dtype),
        };
        let gradients = Gradients {
            query: gradient(&inputs.query),
            key: gradient(&inputs.key),
            value: gradient(&inputs.value),
            log_decay: gradient(&inputs.log_decay),
            beta: gradient(&inputs.beta),
            initial_states: match recurrence.n_initial_states() {
                0 => zeros(&inputs.initial_states),
                _ => {
                    let of = &inputs.initial_states;
                    empty(of, of.meta.shape.clone(), of.dtype)
                }
            },
        };
        // An empty tensor cannot be bound.
        let windows = recurrence.n_windows().max(1);
        let runs = recurrence.runs().len().max(1);
        let of_windows = [windows, value_heads, value_dim, key_dim];
        Self {
            recurrence,
            lists: recurrence.on_device(near),
            run_lists: recurrence.runs_on_device(near),
            client: near.client.clone(),
            dims,
            stored: elem(near.dtype),
            scale: scale as f32,
            window: WindowConfig { key_dim, value_dim },
            w: empty(near, [rows, value_heads, key_dim], near.dtype),
            u: empty(near, [rows, value_heads, value_dim], near.dtype),
            grad_u: empty(near, [rows, value_heads, value_dim], near.dtype),
            decays: empty(near, [3, value_heads, rows], DType::F32),
            entries: empty(near, of_windows, near.dtype),
            exits: empty(near, of_windows, near.dtype),
            entry_windows: empty(near, [windows], DType::U32),
            has_exit: empty(near, [windows], DType::U32),
            run_gradients: empty(near, [runs, value_heads, key_dim, value_dim], DType::F32),
            gradients,
            inputs,
            saved,
            grad_output,
            grad_states,
        }
    }

    /// A list as an argument.
    fn list(&self, list: List) -> BufferArg {
        self.lists.list(list)
    }

    /// A list of the runs as an argument.
    fn run_list(&self, list: RunList) -> BufferArg {
        self.run_lists.list(list)
    }

    /// Rows, key heads and value heads.
    fn sizes(&self) -> [u32; 3] {
        let dims = &self.dims;
        [dims.rows, dims.key_heads, dims.value_heads].map(|size| size as u32)
    }

    /// The kernels along `runs` runs, and their cubes.
    fn along_runs(&self, runs: usize) -> (PathConfig, CubeCount) {
        let hardware = &self.client.properties().hardware;
        let heads = runs * self.dims.value_heads;
        let pairs = path_config(&self.window, true, 3);
        let processors = hardware.num_streaming_multiprocessors.unwrap_or(0);
        let few = heads * pairs.slices() <= 2 * processors as usize;
        let config = match few {
            // Few cubes have their processors to themselves.
            true if path_shared_bytes(pairs) <= hardware.max_shared_memory_size => pairs,
            _ => path_config(&self.window, few, 2),
        };
        (config, cubes(heads * config.slices()))
    }

    pub(super) fn local(&self) {
        let [rows, key_heads, value_heads] = self.sizes();
        // SAFETY: the lists name rows, windows, paths and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_backward_local::launch_unchecked(
                &self.client,
                cubes(self.recurrence.n_windows() * self.dims.value_heads),
                CubeDim::new_1d(local::UNITS as u32),
                self.inputs.query.clone().into_buffer_arg(),
                self.inputs.key.clone().into_buffer_arg(),
                self.inputs.value.clone().into_buffer_arg(),
                self.grad_output.clone().into_buffer_arg(),
                self.saved.inverse.clone().into_buffer_arg(),
                self.inputs.log_decay.clone().into_buffer_arg(),
                self.inputs.beta.clone().into_buffer_arg(),
                self.list(List::SubtreeEnds),
                self.list(List::WindowStarts),
                self.list(List::WindowLengths),
                self.w.clone().into_buffer_arg(),
                self.u.clone().into_buffer_arg(),
                self.grad_u.clone().into_buffer_arg(),
                self.decays.clone().into_buffer_arg(),
                rows,
                key_heads,
                value_heads,
                self.scale,
                self.window,
                self.stored,
            );
        }
    }

    pub(super) fn scan(&self) {
        let [rows, key_heads, value_heads] = self.sizes();
        let (config, cubes) = self.along_runs(self.recurrence.runs().len());
        // SAFETY: the lists name rows, windows, paths and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_backward_scan::launch_unchecked(
                &self.client,
                cubes,
                CubeDim::new_1d(config.units() as u32),
                self.inputs.key.clone().into_buffer_arg(),
                self.w.clone().into_buffer_arg(),
                self.u.clone().into_buffer_arg(),
                self.decays.clone().into_buffer_arg(),
                self.saved.states.clone().into_buffer_arg(),
                self.inputs.initial_states.clone().into_buffer_arg(),
                self.list(List::WindowStarts),
                self.list(List::WindowLengths),
                self.run_list(RunList::Offsets),
                self.run_list(RunList::Entries),
                self.run_list(RunList::Siblings),
                self.entries.clone().into_buffer_arg(),
                self.entry_windows.clone().into_buffer_arg(),
                rows,
                key_heads,
                value_heads,
                config,
                self.stored,
            );
        }
    }

    pub(super) fn reverse_scan(&self, level: &Range<usize>) {
        let [rows, key_heads, value_heads] = self.sizes();
        let (config, cubes) = self.along_runs(level.len());
        // SAFETY: the lists name rows, windows, paths and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_backward_reverse_scan::launch_unchecked(
                &self.client,
                cubes,
                CubeDim::new_1d(config.units() as u32),
                self.inputs.query.clone().into_buffer_arg(),
                self.inputs.key.clone().into_buffer_arg(),
                self.w.clone().into_buffer_arg(),
                self.grad_output.clone().into_buffer_arg(),
                self.grad_u.clone().into_buffer_arg(),
                self.decays.clone().into_buffer_arg(),
                self.grad_states.clone().into_buffer_arg(),
                self.list(List::WindowStarts),
                self.list(List::WindowLengths),
                self.list(List::WindowSlots),
                self.run_list(RunList::Offsets),
                self.run_list(RunList::Entries),
                self.run_list(RunList::Siblings),
                self.run_list(RunList::SlotChildOffsets),
                self.run_list(RunList::SlotChildren),
                self.exits.clone().into_buffer_arg(),
                self.has_exit.clone().into_buffer_arg(),
                self.run_gradients.clone().into_buffer_arg(),
                rows,
                key_heads,
                value_heads,
                self.scale,
                level.start as u32,
                self.recurrence.requested_rows().len() as u32,
                config,
                self.stored,
            );
        }
    }

    pub(super) fn gradients(&self) {
        let [rows, key_heads, value_heads] = self.sizes();
        // SAFETY: the lists name rows, windows, paths and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_backward_gradients::launch_unchecked(
                &self.client,
                cubes(self.recurrence.n_windows() * self.dims.key_heads),
                CubeDim::new_1d(cube_window::UNITS as u32),
                self.inputs.query.clone().into_buffer_arg(),
                self.inputs.key.clone().into_buffer_arg(),
                self.inputs.value.clone().into_buffer_arg(),
                self.grad_output.clone().into_buffer_arg(),
                self.saved.inverse.clone().into_buffer_arg(),
                self.inputs.beta.clone().into_buffer_arg(),
                self.decays.clone().into_buffer_arg(),
                self.u.clone().into_buffer_arg(),
                self.grad_u.clone().into_buffer_arg(),
                self.entries.clone().into_buffer_arg(),
                self.exits.clone().into_buffer_arg(),
                self.list(List::SubtreeEnds),
                self.list(List::WindowStarts),
                self.list(List::WindowLengths),
                self.entry_windows.clone().into_buffer_arg(),
                self.has_exit.clone().into_buffer_arg(),
                self.gradients.query.clone().into_buffer_arg(),
                self.gradients.key.clone().into_buffer_arg(),
                self.gradients.value.clone().into_buffer_arg(),
                self.gradients.log_decay.clone().into_buffer_arg(),
                self.gradients.beta.clone().into_buffer_arg(),
                rows,
                key_heads,
                value_heads,
                self.scale,
                self.window,
                self.stored,
            );
        }
    }

    pub(super) fn initial(&self) {
        if self.recurrence.n_initial_states() == 0 {
            return;
        }
        let state = self.dims.value_heads * self.dims.key_dim * self.dims.value_dim / 4;
        let total = self.recurrence.n_initial_states() * state;
        let gradient = &self.gradients.initial_states;
        let (count, dim) = units(&self.client, total);
        // SAFETY: the lists name rows, windows, paths and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_backward_initial::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[&self.run_gradients, gradient]),
                self.run_gradients.clone().into_buffer_arg(),
                self.run_list(RunList::InitialChildOffsets),
                self.run_list(RunList::InitialChildren),
                gradient.clone().into_buffer_arg(),
                state,
                total,
            );
        }
    }
}

/// A launch of `count` cubes.
fn cubes(count: usize) -> CubeCount {
    CubeCount::Static(count as u32, 1, 1)
}
