//! Kernels for any CubeCL runtime: tiles in shared memory (at most 28 KiB), at most eight buffers
//! and 256 units, no plane operations, no atomics. Sizes are run-time arguments, so that a pair of
//! kernels serves all trees and head dimensions; only the state that a unit keeps in registers has
//! a size of its own, the key dimension in tiles of 64.
//!
//! Forward: gates and inverses of all windows, their operators `w` and `u`, the states level by
//! level, outputs of all windows. Backward: the same without outputs, in one launch for all levels;
//! what outputs add to gradients of updates and states; gradients of states level by level from the
//! last; gradients of all windows. Every sum has an order of its own, the same each time.

mod backward;
mod elementwise;
mod forward;
mod gates;
mod gradients;
mod launch;
mod products;
mod scan;
mod tile;
#[cfg(all(test, feature = "cuda"))]
mod transpiled;
mod window;

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::implementation::Unavailable;
use cubecl::prelude::*;

use super::call::{Dims, Gradients, Inputs, Saved};
use crate::recurrence::TreeRecurrence;
use launch::Call;
use tile::TILE;

/// Tiles of keys whose state units can keep in registers.
const MAX_KEY_TILES: usize = 4;
/// Bytes of shared memory of the kernel with the most.
const SHARED_BYTES: usize = 28 * 1024;

/// Whether these kernels run on a device.
pub(crate) fn check_available(
    properties: &DeviceProperties,
    dtype: DType,
    dims: &Dims,
) -> Result<(), Unavailable> {
    let stored = burn_tree_kit::cube::elem(dtype);
    if dtype == DType::F64 || !properties.supports_type(stored) {
        return Err(Unavailable(format!(
            "the kernels do not compute in {dtype:?} there"
        )));
    }
    let hardware = &properties.hardware;
    let units = hardware.max_units_per_cube.min(hardware.max_cube_dim.0);
    if units < forward::UNITS {
        return Err(Unavailable(format!(
            "cubes have at most {units} units there, {} are needed",
            forward::UNITS
        )));
    }
    if hardware.max_shared_memory_size < SHARED_BYTES {
        return Err(Unavailable(format!(
            "cubes have {} bytes of shared memory there, {SHARED_BYTES} are needed",
            hardware.max_shared_memory_size
        )));
    }
    if dims.key_dim > MAX_KEY_TILES * TILE {
        return Err(Unavailable(format!(
            "the head dimension of the key is {}, at most {} fit in registers",
            dims.key_dim,
            MAX_KEY_TILES * TILE
        )));
    }
    launch::check_sizes(properties, dims)
}

/// As [`TreeSsmOps::gated_delta_rule`](crate::TreeSsmOps), from contiguous tensors.
pub(crate) fn forward(
    inputs: Inputs,
    recurrence: &TreeRecurrence,
    scale: f64,
) -> (CubeTensor, Saved) {
    let call = Call::new(&inputs, recurrence, scale);
    let gates = call.window_gates(&inputs);
    let inverse = call.window_inverse(&inputs, &gates);
    let (w, updates) = call.window_operators(&inputs, &inverse, &gates);
    let states = call.empty_states(recurrence.n_slots(), DType::F32);
    let window_states = call.empty_window_states();
    for level in recurrence.levels() {
        call.scan(
            &inputs,
            [&w, &updates, &gates],
            &window_states,
            &states,
            level.clone(),
            true,
        );
    }
    let output = call.window_output(&inputs, &updates, &window_states, &gates);
    (output, Saved { states, inverse })
}

/// As [`TreeSsmOps::gated_delta_rule_backward`](crate::TreeSsmOps), from contiguous tensors.
pub(crate) fn backward(
    inputs: Inputs,
    saved: Saved,
    (grad_output, grad_states): (CubeTensor, CubeTensor),
    recurrence: &TreeRecurrence,
    scale: f64,
) -> Gradients {
    let call = Call::new(&inputs, recurrence, scale);
    let gates = call.window_gates(&inputs);
    let (w, updates) = call.window_operators(&inputs, &saved.inverse, &gates);
    let window_states = call.empty_window_states();
    call.scan(
        &inputs,
        [&w, &updates, &gates],
        &window_states,
        &saved.states,
        0..recurrence.n_paths(),
        false,
    );

    let grad_updates = call.update_gradients(&inputs, &grad_output, &gates);
    let window_grads = call.state_gradients(&inputs, &w, &grad_output, &grad_updates, &gates);
    let state_grads = call.state_grads(grad_states);
    for level in recurrence.levels().iter().rev() {
        call.scan_backward(
            &inputs.key,
            [&w, &grad_updates, &gates],
            &window_grads,
            &state_grads,
            level.clone(),
        );
    }
    drop(w);

    let value = call.value_gradients(&inputs, &saved.inverse, &grad_updates, &gates);
    let query = call.query_gradients(&inputs, &grad_output, &updates, &window_states, &gates);
    let key = call.key_gradients(
        &inputs,
        &grad_output,
        [
            &updates,
            &grad_updates,
            &window_states,
            &window_grads,
            &gates,
        ],
    );
    let (log_decay, beta) = call.gate_gradients(&gates);
    let initial_states = call.initial_gradients(&state_grads, &inputs.initial_states.shape());
    Gradients {
        query,
        key,
        value,
        log_decay,
        beta,
        initial_states,
    }
}
