//! The gated delta rule on CubeCL devices: which implementation runs, and with what.

// Forms that the language of kernels lacks.
#![allow(
    clippy::assign_op_pattern,
    clippy::collapsible_if,
    clippy::extra_unused_type_parameters,
    clippy::if_same_then_else,
    clippy::manual_is_multiple_of,
    clippy::manual_swap
)]

pub(crate) mod accelerated;
pub(crate) mod call;
mod log_decay;
pub(crate) mod portable;
#[cfg(all(test, feature = "cuda"))]
mod transpiled;

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::implementation::{Implementation, Kernels, Unavailable, announce};

use crate::recurrence::TreeRecurrence;
use call::{Dims, Gradients, Inputs, Saved};

/// The operation, as events name it.
pub(crate) const OP: &str = "gated_delta_rule";

/// The kernels that run a call with windows of `window_rows` rows on a device; `None` for the
/// generic bodies, if they are asked for.
///
/// # Errors
/// If what is asked for cannot run; if nothing is asked for, no kernels can.
pub(crate) fn select(
    requested: Implementation,
    device: &CubeDevice,
    dtype: DType,
    dims: &Dims,
    window_rows: usize,
) -> Result<Option<Kernels>, Unavailable> {
    let client = device.client();
    let properties = client.properties();
    requested.select(|kernels| match kernels {
        Kernels::Portable => portable::check_available(properties, dtype, dims),
        Kernels::Accelerated => accelerated::check_available(properties, dtype, dims, window_rows),
    })
}

/// The forward pass: the output, and what the backward pass needs.
pub(crate) fn forward(
    kernels: Kernels,
    inputs: Inputs,
    recurrence: &TreeRecurrence,
    scale: f64,
) -> (CubeTensor, Saved) {
    let inputs = Inputs::from_array(inputs.into_array().map(into_contiguous));
    announce(OP, "forward", kernels.name());
    match kernels {
        Kernels::Portable => portable::forward(inputs, recurrence, scale),
        Kernels::Accelerated => accelerated::forward(inputs, recurrence, scale),
    }
}

/// The backward pass.
pub(crate) fn backward(
    kernels: Kernels,
    inputs: Inputs,
    saved: Saved,
    (grad_output, grad_states): (CubeTensor, CubeTensor),
    recurrence: &TreeRecurrence,
    scale: f64,
) -> Gradients {
    let inputs = Inputs::from_array(inputs.into_array().map(into_contiguous));
    let saved = Saved {
        states: into_contiguous(saved.states),
        inverse: into_contiguous(saved.inverse),
    };
    let grads = (into_contiguous(grad_output), into_contiguous(grad_states));
    announce(OP, "backward", kernels.name());
    match kernels {
        Kernels::Portable => portable::backward(inputs, saved, grads, recurrence, scale),
        Kernels::Accelerated => accelerated::backward(inputs, saved, grads, recurrence, scale),
    }
}
