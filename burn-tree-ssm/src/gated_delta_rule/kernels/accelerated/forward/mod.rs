//! Forward pass on tensor cores.
//!
//! 1. [`local`]: what does not depend on states, for all windows at once: the inverse, and the
//!    weights from values to updates and from updates to outputs
//! 2. [`paths`], level by level: states, updates and outputs along paths
//!
//! The second reads values and writes outputs once; between the two go 64 numbers per row and value
//! head, twice. Every sum has one owner and a fixed order: two runs give the same bits.

mod copies;
mod inverse;
mod local;
mod paths;
#[cfg(all(test, feature = "cuda"))]
pub(super) mod transpiled;

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{elem, empty, zeros};
use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::call::{Dims, Inputs, Saved};
use super::blocks::ROWS;
use super::states::PathConfig;
use crate::recurrence::TreeRecurrence;
use crate::recurrence::device::{DeviceLists, RecurrenceList as List, RunList};
use local::{LocalConfig, gated_delta_rule_local};
use paths::gated_delta_rule_paths;

/// Bytes of shared memory that a cube of the forward pass needs at least.
pub(super) fn shared_bytes(key_dim: usize, value_dim: usize) -> usize {
    let local = LocalConfig { key_dim, heads: 1 };
    let along_paths = path_config(key_dim, value_dim, SMALL);
    local.shared_bytes().max(along_paths.paths_shared_bytes())
}

/// Planes and stages of the kernel along paths: while few cubes have a processor each, many slices
/// and windows further ahead; otherwise wide slices; and where these do not fit the device.
const FEW: (usize, usize) = (2, 3);
const MANY: (usize, usize) = (4, 2);
const SMALL: (usize, usize) = (2, 2);

/// The kernel along paths for a shape.
fn path_config(key_dim: usize, value_dim: usize, (planes, stages): (usize, usize)) -> PathConfig {
    PathConfig {
        key_dim,
        value_dim,
        planes,
        stages,
    }
}

/// The output, and what the backward pass needs, from contiguous tensors.
pub(crate) fn forward(
    inputs: Inputs,
    recurrence: &TreeRecurrence,
    scale: f64,
) -> (CubeTensor, Saved) {
    let pass = Pass::new(inputs, recurrence, scale);
    if recurrence.n_windows() > 0 {
        pass.local();
        for level in recurrence.runs().levels() {
            pass.paths(level);
        }
    }
    (pass.output, pass.saved)
}

/// What the launches share.
struct Pass<'a> {
    recurrence: &'a TreeRecurrence,
    lists: Arc<DeviceLists<List>>,
    run_lists: Arc<DeviceLists<RunList>>,
    client: Client,
    dims: Dims,
    stored: ElemType,
    scale: f32,

    inputs: Inputs,
    /// `[R, HV, 64]`
    mixing: CubeTensor,
    /// `[R, HV, 64]`
    scores: CubeTensor,
    /// `[2, HV, R]`
    decays: CubeTensor,
    output: CubeTensor,
    saved: Saved,
}

impl<'a> Pass<'a> {
    fn new(inputs: Inputs, recurrence: &'a TreeRecurrence, scale: f64) -> Self {
        let dims = Dims::new(&inputs.query, &inputs.value);
        let Dims {
            rows,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = dims;
        let near = &inputs.value;
        let square = || empty(near, [rows, value_heads, ROWS], near.dtype);
        // Rows of padding are written by no kernel.
        let padding = recurrence.has_padding();
        let shape = near.meta.shape.clone();
        let output = match padding {
            true => zeros(near, shape, near.dtype),
            false => empty(near, shape, near.dtype),
        };
        let slots = recurrence.n_slots().max(1);
        let states = empty(near, [slots, value_heads, key_dim, value_dim], DType::F32);
        Self {
            recurrence,
            lists: recurrence.on_device(near),
            run_lists: recurrence.runs_on_device(near),
            client: near.client.clone(),
            dims,
            stored: elem(near.dtype),
            scale: scale as f32,
            mixing: square(),
            scores: square(),
            decays: empty(near, [2, value_heads, rows], DType::F32),
            output,
            saved: Saved {
                states,
                inverse: square(),
            },
            inputs,
        }
    }

    /// Rows, key heads and value heads.
    fn sizes(&self) -> [u32; 3] {
        let dims = &self.dims;
        [dims.rows, dims.key_heads, dims.value_heads].map(|size| size as u32)
    }

    fn fits(&self, shared_bytes: usize) -> bool {
        shared_bytes <= self.client.properties().hardware.max_shared_memory_size
    }

    fn local(&self) {
        let [rows, key_heads, value_heads] = self.sizes();
        let group = self.dims.value_heads / self.dims.key_heads;
        let config = |heads| LocalConfig {
            key_dim: self.dims.key_dim,
            heads,
        };
        let pairs = group > 1 && self.fits(config(2).shared_bytes());
        let config = config(if pairs { 2 } else { 1 });
        // SAFETY: the lists name rows, windows, runs and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_local::launch_unchecked(
                &self.client,
                cubes(self.recurrence.n_windows() * self.dims.key_heads * config.parts(group)),
                CubeDim::new_1d(config.units() as u32),
                self.inputs.query.clone().into_buffer_arg(),
                self.inputs.key.clone().into_buffer_arg(),
                self.inputs.log_decay.clone().into_buffer_arg(),
                self.inputs.beta.clone().into_buffer_arg(),
                self.lists.list(List::SubtreeEnds),
                self.lists.list(List::WindowStarts),
                self.lists.list(List::WindowLengths),
                self.saved.inverse.clone().into_buffer_arg(),
                self.mixing.clone().into_buffer_arg(),
                self.scores.clone().into_buffer_arg(),
                self.decays.clone().into_buffer_arg(),
                rows,
                key_heads,
                value_heads,
                self.scale,
                config,
                self.stored,
            );
        }
    }

    fn paths(&self, level: &Range<usize>) {
        let [rows, key_heads, value_heads] = self.sizes();
        let heads = level.len() * self.dims.value_heads;
        let config = self.path_config(heads);
        // SAFETY: the lists name rows, windows, runs and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_paths::launch_unchecked(
                &self.client,
                cubes(heads * config.slices()),
                CubeDim::new_1d(config.units() as u32),
                self.inputs.query.clone().into_buffer_arg(),
                self.inputs.key.clone().into_buffer_arg(),
                self.inputs.value.clone().into_buffer_arg(),
                self.mixing.clone().into_buffer_arg(),
                self.scores.clone().into_buffer_arg(),
                self.decays.clone().into_buffer_arg(),
                self.saved.states.clone().into_buffer_arg(),
                self.inputs.initial_states.clone().into_buffer_arg(),
                self.lists.list(List::WindowStarts),
                self.lists.list(List::WindowLengths),
                self.lists.list(List::WindowSlots),
                self.run_lists.list(RunList::Offsets),
                self.run_lists.list(RunList::Entries),
                self.run_lists.list(RunList::Siblings),
                self.output.clone().into_buffer_arg(),
                rows,
                key_heads,
                value_heads,
                level.start as u32,
                self.scale,
                config,
                self.stored,
            );
        }
    }

    /// The shape for `heads` pairs of a run and a head.
    fn path_config(&self, heads: usize) -> PathConfig {
        let shapes = [FEW, MANY, SMALL];
        let [few, many, small] =
            shapes.map(|shape| path_config(self.dims.key_dim, self.dims.value_dim, shape));
        let hardware = &self.client.properties().hardware;
        let processors = hardware.num_streaming_multiprocessors.unwrap_or(0);
        let config = match heads * few.slices() <= processors as usize {
            true => few,
            false => many,
        };
        match self.fits(config.paths_shared_bytes()) {
            true => config,
            false => small,
        }
    }
}

/// A launch of `count` cubes.
fn cubes(count: usize) -> CubeCount {
    CubeCount::Static(count as u32, 1, 1)
}
