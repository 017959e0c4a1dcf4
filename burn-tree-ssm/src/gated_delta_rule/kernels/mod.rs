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
mod log_decay;
pub(crate) mod portable;

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::implementation::{Implementation, Kernels, announce};

use super::{Inputs, Saved};
use crate::TreeRecurrence;

pub(crate) use burn_tree_kit::implementation::Unavailable;

/// The operation, as events name it.
pub(crate) const OP: &str = "gated_delta_rule";

/// Sizes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dims {
    /// With padding.
    pub rows: usize,
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

impl Dims {
    /// Of `query [R, HK, DK]` and `value [R, HV, DV]`.
    pub(crate) fn new(query: &CubeTensor, value: &CubeTensor) -> Self {
        let [rows, key_heads, key_dim] = query.shape().dims();
        let [_, value_heads, value_dim] = value.shape().dims();
        Self::of_shapes(
            [1, rows, key_heads, key_dim],
            [1, rows, value_heads, value_dim],
        )
    }

    /// Of `query [B, N, HK, DK]` and `value [B, N, HV, DV]`.
    pub(crate) fn of_shapes(query: [usize; 4], value: [usize; 4]) -> Self {
        Self {
            rows: query[0] * query[1],
            key_heads: query[2],
            value_heads: value[2],
            key_dim: query[3],
            value_dim: value[3],
        }
    }
}

/// What the forward pass returns, as [`TreeSsmOps::gated_delta_rule`](crate::TreeSsmOps).
pub(crate) struct Outputs {
    pub output: CubeTensor,
    pub states: CubeTensor,
    pub inverse: CubeTensor,
}

/// What the backward pass returns, as
/// [`TreeSsmOps::gated_delta_rule_backward`](crate::TreeSsmOps).
pub(crate) struct Gradients {
    pub query: CubeTensor,
    pub key: CubeTensor,
    pub value: CubeTensor,
    pub log_decay: CubeTensor,
    pub beta: CubeTensor,
    pub initial_states: CubeTensor,
}

/// The kernels that run a call with windows of `window_rows` rows on a device; `None` for the generic
/// bodies, if they are asked for.
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

/// The forward pass.
pub(crate) fn forward(
    kernels: Kernels,
    inputs: Inputs<CubeTensor>,
    recurrence: &TreeRecurrence,
    scale: f64,
) -> Outputs {
    let inputs = inputs.map(into_contiguous);
    announce(OP, "forward", kernels.name());
    match kernels {
        Kernels::Portable => portable::forward(inputs, recurrence, scale),
        Kernels::Accelerated => accelerated::forward(inputs, recurrence, scale),
    }
}

/// The backward pass.
pub(crate) fn backward(
    kernels: Kernels,
    inputs: Inputs<CubeTensor>,
    saved: Saved<CubeTensor>,
    grad_output: CubeTensor,
    grad_states: CubeTensor,
    recurrence: &TreeRecurrence,
    scale: f64,
) -> Gradients {
    let inputs = inputs.map(into_contiguous);
    let saved = Saved {
        states: into_contiguous(saved.states),
        inverse: into_contiguous(saved.inverse),
    };
    let [grad_output, grad_states] = [grad_output, grad_states].map(into_contiguous);
    announce(OP, "backward", kernels.name());
    match kernels {
        Kernels::Portable => {
            portable::backward(inputs, saved, grad_output, grad_states, recurrence, scale)
        }
        Kernels::Accelerated => {
            accelerated::backward(inputs, saved, grad_output, grad_states, recurrence, scale)
        }
    }
}
