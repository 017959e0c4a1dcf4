//! Backward pass on tensor cores.
//!
//! 1. [`local`]: what does not depend on states: `W` and `U0`, as the forward pass had them, from
//!    its saved inverse, and the part of `dU` that comes from the outputs of the own window
//! 2. [`scan`]: `U` and the state before each window, again as the forward pass had them
//! 3. [`reverse_scan`], level by level from the last: `dU` and the gradient of the state after each
//!    window; runs leave the gradients of their entries, which the slots' runs add
//! 4. [`gradients`]: those of all rows
//! 5. [`initial`]: those of the initial states
//!
//! Every sum has one owner and a fixed order: two runs give the same bits.

mod config;
mod cube_window;
mod gates;
mod gradients;
mod initial;
mod local;
mod operators;
mod pairs;
mod pass;
mod reverse_scan;
mod scan;
mod stages;
mod state_products;
#[cfg(all(test, feature = "cuda"))]
pub(super) mod transpiled;
mod values;

use burn_cubecl::tensor::CubeTensor;

use super::super::call::{Gradients, Inputs, Saved};
use crate::recurrence::TreeRecurrence;
pub(super) use config::shared_bytes;
use pass::Pass;

/// Gradients of all inputs, from contiguous tensors.
pub(crate) fn backward(
    inputs: Inputs,
    saved: Saved,
    grads: (CubeTensor, CubeTensor),
    recurrence: &TreeRecurrence,
    scale: f64,
) -> Gradients {
    let pass = Pass::new(inputs, saved, grads, recurrence, scale);
    if recurrence.n_windows() > 0 {
        pass.local();
        pass.scan();
        for level in recurrence.runs().levels().iter().rev() {
            pass.reverse_scan(level);
        }
        pass.gradients();
    }
    pass.initial();
    pass.gradients
}
