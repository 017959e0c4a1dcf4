//! The backward pass. `dX` is the gradient of `X` of the forward pass; with that of the state
//! after a window, `dS`:
//! ```text
//! dU = P^T dO + diag(E_last) K dS      dR = Ag^T dU      dV = dR      dY = -exp(G) dR
//! dH = K^T dY + (exp(G) Q)^T dO + exp(G_last) dS
//! dAg = dU R^T      dP' = dO U^T       dP = E . dP'      W = E . dAg
//! dL = -m . (T^T (W diag(beta)) T^T)   N = diag(beta) dL
//! dQ = exp(G) dO H^T + dP K
//! dK = dP^T Q + dY H^T + diag(E_last) U dS^T + (N + N^T) K
//! dbeta_j = sum_i W_ij T_ij + sum_i dL_ji (K K^T)_ji
//! ```
//! The log decay of a row scales everything that goes from its ancestors to itself and its
//! descendants: its gradient is the sum of what passes, which is exactly zero where nothing does.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn_tree_kit::dtype::at_least_f32;

use super::array::{Array, zeros_like};
use super::forward::{Entered, entries};
use super::step_gradients::{StepGradients, grad_exits, step_gradients};
use super::tiles::Step;
use super::window_gradients::WindowGradients;
use super::windows::Windows;
use crate::gated_delta_rule::settings::GatedDeltaRuleSettings;
use crate::gated_delta_rule::tensors::{
    GatedDeltaRuleGradients, GatedDeltaRuleInputs, GatedDeltaRuleSaved,
};
use crate::recurrence::{ENTRY_ZERO, TreeRecurrence};

/// See [`crate::TreeSsmOps::gated_delta_rule_backward`].
pub(crate) fn backward<B: Backend>(
    inputs: GatedDeltaRuleInputs<B>,
    saved: GatedDeltaRuleSaved<B>,
    (grad_output, grad_states): (FloatTensor<B>, FloatTensor<B>),
    recurrence: &TreeRecurrence,
    settings: GatedDeltaRuleSettings,
) -> GatedDeltaRuleGradients<B> {
    if recurrence.n_windows() == 0 {
        let zeros = |tensor| zeros_like(&Array::<B>(tensor)).0;
        return GatedDeltaRuleGradients::from_array(inputs.into_array().map(zeros));
    }
    let dtype = inputs.value.dtype();
    let wide = at_least_f32(dtype);
    let windows = Windows::new(&inputs, saved.inverse, grad_output, recurrence, settings);
    let states = Array::<B>(saved.states);
    let initial_states = Array::<B>(inputs.initial_states);
    let paths = Paths::new(&windows, recurrence, &states, &initial_states);
    let (steps, grad_initial) = paths.gradients(&Array(grad_states));
    let gradients = WindowGradients::new(&windows, &steps);

    let tiles = &windows.tiles;
    let group = windows.local.value.size(1) / inputs.key.shape()[1];
    let gate = |grad: Array<B>, like: &FloatTensor<B>| {
        let rows = tiles.scatter(grad, 1, wide);
        B::float_reshape(rows, like.shape())
    };
    GatedDeltaRuleGradients {
        query: tiles.scatter(gradients.query.scale(settings.scale), group, dtype.into()),
        key: tiles.scatter(gradients.key, group, dtype.into()),
        value: tiles.scatter(gradients.value, 1, dtype.into()),
        log_decay: gate(gradients.log_decay, &inputs.log_decay),
        beta: gate(gradients.beta, &inputs.beta),
        initial_states: grad_initial.0,
    }
}

/// The states with which the windows of a step start, and what follows from them.
type EnteredStep<B> = (Array<B>, Entered<B>);

/// The windows along the paths, with the states of the forward pass.
struct Paths<'a, B: Backend> {
    windows: &'a Windows<B>,
    recurrence: &'a TreeRecurrence,
    initial_states: &'a Array<B>,
    /// For every step of every level.
    steps: Vec<Vec<EnteredStep<B>>>,
}

impl<'a, B: Backend> Paths<'a, B> {
    fn new(
        windows: &'a Windows<B>,
        recurrence: &'a TreeRecurrence,
        states: &Array<B>,
        initial_states: &'a Array<B>,
    ) -> Self {
        let Windows { local, mixing, .. } = windows;
        let slot = |slot: usize| states.part(slot..slot + 1);
        let of_level = |level: &Vec<Step>| {
            let mut state = entries(recurrence, &level[0], slot, initial_states);
            let mut steps = Vec::with_capacity(level.len());
            for (index, step) in level.iter().enumerate() {
                let entry = state.part(0..step.tiles.len());
                let entered = Entered::new(local, mixing, step, &entry);
                if index + 1 < level.len() {
                    state = entered.exit(local, step, &entry);
                }
                steps.push((entry, entered));
            }
            steps
        };
        Self {
            windows,
            recurrence,
            initial_states,
            steps: windows.tiles.levels.iter().map(of_level).collect(),
        }
    }

    /// The gradients of all steps, and those of the initial states.
    fn gradients(self, grad_states: &Array<B>) -> (Vec<StepGradients<B>>, Array<B>) {
        let requested = self.recurrence.requested_rows().len();
        let mut grad_slots: Vec<Option<Array<B>>> = (0..self.recurrence.n_slots())
            .map(|slot| (slot < requested).then(|| grad_states.part(slot..slot + 1)))
            .collect();
        let mut grad_initial = vec![None; self.recurrence.n_initial_states()];
        let mut gradients = Vec::new();
        let levels = self.windows.tiles.levels.iter();
        for (level, steps) in levels.zip(self.steps).rev() {
            // Of the states with which the windows of the step start.
            let mut grad_entry: Option<Array<B>> = None;
            for (step, (entry, entered)) in level.iter().zip(steps).rev() {
                let grad_exit =
                    grad_exits(step, grad_entry.take(), &grad_slots, self.initial_states);
                let (of_step, grad) =
                    step_gradients(self.windows, step, &entry, entered, grad_exit);
                gradients.push(of_step);
                grad_entry = Some(grad);
            }
            let grad_entry = grad_entry.expect("a level has a step");
            for (index, path) in level[0].paths.clone().enumerate() {
                let grad = grad_entry.part(index..index + 1);
                match self.recurrence.path_entries()[path] {
                    ENTRY_ZERO => {}
                    slot if slot >= 0 => add(&mut grad_slots[slot as usize], grad),
                    initial => add(&mut grad_initial[(-2 - initial) as usize], grad),
                }
            }
        }
        gradients.reverse();
        (gradients, join_initial(grad_initial, self.initial_states))
    }
}

/// Adds to a sum that may have no terms yet.
fn add<B: Backend>(sum: &mut Option<Array<B>>, grad: Array<B>) {
    *sum = Some(match sum.take() {
        Some(sum) => sum + grad,
        None => grad,
    });
}

/// The gradients of all initial states, zero for those from which no path starts.
fn join_initial<B: Backend>(grads: Vec<Option<Array<B>>>, initial_states: &Array<B>) -> Array<B> {
    if grads.is_empty() {
        return zeros_like(initial_states);
    }
    let unused = || zeros_like(&initial_states.part(0..1));
    let grads = grads.into_iter().map(|grad| grad.unwrap_or_else(unused));
    Array::cat(grads.collect(), 0)
}
