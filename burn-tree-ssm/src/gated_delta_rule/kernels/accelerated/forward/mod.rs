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
mod mixing;
mod paths;
mod scores;
mod step;
#[cfg(all(test, feature = "cuda"))]
pub(super) mod transpiled;

use std::ops::Range;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{empty, zeros};
use cubecl::prelude::*;

use super::super::call::{Dims, Inputs, Saved};
use super::arguments::LevelLaunch;
use super::blocks::ROWS;
use super::pass::{Launches, buffer};
use super::place::PathConfig;
use crate::recurrence::TreeRecurrence;
use crate::recurrence::device::RecurrenceList as List;
use local::{LocalConfig, LocalInputsLaunch, LocalResultsLaunch, gated_delta_rule_local};
use paths::{PathInputsLaunch, PathResultsLaunch, gated_delta_rule_paths};

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

/// The tensors of a pass.
struct Pass<'a> {
    launches: Launches<'a>,
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
        let launches = Launches::new(&inputs, recurrence, scale);
        let Dims {
            rows,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = launches.dims;
        let near = &inputs.value;
        let square = || empty(near, [rows, value_heads, ROWS], near.dtype);
        let shape = near.meta.shape.clone();
        // Rows of padding are written by no kernel.
        let output = match recurrence.has_padding() {
            true => zeros(near, shape, near.dtype),
            false => empty(near, shape, near.dtype),
        };
        let slots = recurrence.n_slots().max(1);
        let states = empty(near, [slots, value_heads, key_dim, value_dim], DType::F32);
        Self {
            mixing: square(),
            scores: square(),
            decays: empty(near, [2, value_heads, rows], DType::F32),
            output,
            saved: Saved {
                states,
                inverse: square(),
            },
            launches,
            inputs,
        }
    }

    fn fits(&self, shared_bytes: usize) -> bool {
        let hardware = &self.launches.client.properties().hardware;
        shared_bytes <= hardware.max_shared_memory_size
    }

    fn local(&self) {
        let launches = &self.launches;
        let dims = &launches.dims;
        let group = dims.value_heads / dims.key_heads;
        let config = |heads| LocalConfig {
            key_dim: dims.key_dim,
            heads,
        };
        let pairs = group > 1 && self.fits(config(2).shared_bytes());
        let config = config(if pairs { 2 } else { 1 });
        let windows = launches.recurrence.n_windows();
        // SAFETY: the lists name rows, windows, runs and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_local::launch_unchecked(
                &launches.client,
                launches.cubes(windows * dims.key_heads * config.parts(group)),
                CubeDim::new_1d(config.units() as u32),
                LocalInputsLaunch::new(buffer(&self.inputs.query), buffer(&self.inputs.key)),
                launches.gates(&self.inputs),
                launches.windows(),
                LocalResultsLaunch::new(
                    buffer(&self.saved.inverse),
                    buffer(&self.mixing),
                    buffer(&self.scores),
                    buffer(&self.decays),
                ),
                launches.sizes(),
                launches.scale,
                config,
                launches.stored,
            );
        }
    }

    fn paths(&self, level: &Range<usize>) {
        let launches = &self.launches;
        let heads = level.len() * launches.dims.value_heads;
        let config = self.path_config(heads);
        let inputs = PathInputsLaunch::new(
            buffer(&self.inputs.query),
            buffer(&self.inputs.key),
            buffer(&self.inputs.value),
            buffer(&self.mixing),
            buffer(&self.scores),
            buffer(&self.decays),
            buffer(&self.inputs.initial_states),
        );
        // SAFETY: the lists name rows, windows, runs and slots of tensors of these sizes, and the
        // kernel touches nothing else.
        unsafe {
            gated_delta_rule_paths::launch_unchecked(
                &launches.client,
                launches.cubes(heads * config.slices()),
                CubeDim::new_1d(config.units() as u32),
                inputs,
                launches.path_lists(),
                launches.list(List::WindowSlots),
                PathResultsLaunch::new(buffer(&self.saved.states), buffer(&self.output)),
                launches.sizes(),
                LevelLaunch::new(level.start as u32, launches.scale),
                config,
                launches.stored,
            );
        }
    }

    /// The shape for `heads` pairs of a run and a head.
    fn path_config(&self, heads: usize) -> PathConfig {
        let dims = &self.launches.dims;
        let shapes = [FEW, MANY, SMALL];
        let [few, many, small] =
            shapes.map(|shape| path_config(dims.key_dim, dims.value_dim, shape));
        let hardware = &self.launches.client.properties().hardware;
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
