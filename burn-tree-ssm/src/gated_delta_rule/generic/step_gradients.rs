//! Gradients of one step: the windows that come next on the paths of a level.

use burn::backend::{Backend, TensorMetadata};

use super::array::{Array, zeros_like};
use super::forward::Entered;
use super::tiles::Step;
use super::windows::Windows;

/// What depends on the states, for the windows of one step.
pub(super) struct StepGradients<B: Backend> {
    /// `dU`, `U` and `R`, `[n, HV, C, DV]`.
    pub(super) grad_update: Array<B>,
    pub(super) update: Array<B>,
    pub(super) residual: Array<B>,
    /// `dV`
    pub(super) value: Array<B>,
    /// `exp(G) dO H^T`
    pub(super) query: Array<B>,
    /// `dY H^T + diag(E_last) U dS^T`
    pub(super) key: Array<B>,
    /// `[n, HV, C, 1]` what the log decays from the entry to the row get through it.
    pub(super) from_entry: Array<B>,
    /// `[n, HV, C, 1]` what the log decays from the row (exclusive) to the exit get through it.
    pub(super) to_exit: Array<B>,
    /// `[n, HV, 1, 1]` what all log decays get through the state that passes.
    pub(super) through: Array<B>,
}

/// One of the tensors of all steps, as one tensor of all windows.
pub(super) fn join<B: Backend>(
    steps: &[StepGradients<B>],
    part: fn(&StepGradients<B>) -> &Array<B>,
) -> Array<B> {
    Array::cat(steps.iter().map(|step| part(step).clone()).collect(), 0)
}

/// The gradients of the states after the windows of a step: from the windows that follow, which
/// are the first ones, and from slots. `None` if there are neither.
pub(super) fn grad_exits<B: Backend>(
    step: &Step,
    grad_next: Option<Array<B>>,
    grad_slots: &[Option<Array<B>>],
    like: &Array<B>,
) -> Option<Array<B>> {
    if grad_next.is_none() && step.slots.is_empty() {
        return None;
    }
    let [heads, key_dim, value_dim] = [1, 2, 3].map(|dim| like.size(dim));
    let (device, dtype) = (like.0.device(), like.0.dtype().into());
    let zeros = |count| Array::zeros([count, heads, key_dim, value_dim], &device, dtype);
    let next = grad_next.as_ref().map_or(0, |grad| grad.size(0));
    let mut parts: Vec<Array<B>> = grad_next.into_iter().collect();
    if next < step.tiles.len() {
        parts.push(zeros(step.tiles.len() - next));
    }
    let mut grads = Array::cat(parts, 0);
    if step.slots.is_empty() {
        return Some(grads);
    }
    // One addition for all slots: their gradients where the slots are, zeros between.
    let mut parts = Vec::new();
    let mut done = 0;
    for &(tile, slot) in &step.slots {
        if let Some(grad) = &grad_slots[slot] {
            if done < tile {
                parts.push(zeros(tile - done));
            }
            parts.push(grad.clone());
            done = tile + 1;
        }
    }
    if done < step.tiles.len() {
        parts.push(zeros(step.tiles.len() - done));
    }
    grads = grads + Array::cat(parts, 0);
    Some(grads)
}

/// The gradients of a step, and that of its entry states.
pub(super) fn step_gradients<B: Backend>(
    windows: &Windows<B>,
    step: &Step,
    entry: &Array<B>,
    entered: Entered<B>,
    grad_exit: Option<Array<B>>,
) -> (StepGradients<B>, Array<B>) {
    let of = |array: &Array<B>| array.part(step.tiles.clone());
    let local = &windows.local;
    let (query, key) = (of(&local.query), of(&local.key));
    let (from_entry, to_exit) = (of(&local.from_entry), of(&local.to_exit));
    let grad_output = of(&windows.grad_output);
    let Entered {
        recalled,
        residual,
        update,
    } = entered;

    let mut grad_update = of(&local.scores).t().dot(&grad_output);
    if let Some(grad_exit) = &grad_exit {
        grad_update = grad_update + &to_exit * key.dot(grad_exit);
    }
    let grad_value = of(&windows.mixing).t().dot(&grad_update);
    let grad_recalled = -(&from_entry * &grad_value);
    let grad_query = &from_entry * grad_output.dot(&entry.t());
    let grad_key = grad_recalled.dot(&entry.t());
    let grad_entry = key.t().dot(&grad_recalled) + (from_entry * &query).t().dot(&grad_output);
    let passed = (&grad_query * &query).sum(3) + (&grad_recalled * &recalled).sum(3);

    let mut gradients = StepGradients {
        to_exit: zeros_like(&passed),
        through: zeros_like(&passed.narrow(2, 0..1)),
        from_entry: passed,
        grad_update,
        update,
        residual,
        value: grad_value,
        query: grad_query,
        key: grad_key,
    };
    let Some(grad_exit) = grad_exit else {
        return (gradients, grad_entry);
    };
    let grad_key_exit = to_exit * gradients.update.dot(&grad_exit.t());
    let through = of(&local.through);
    gradients.to_exit = (&key * &grad_key_exit).sum(3);
    gradients.through = &through * (entry * &grad_exit).sum(2).sum(3);
    gradients.key = gradients.key + grad_key_exit;
    (gradients, grad_entry + through * grad_exit)
}
