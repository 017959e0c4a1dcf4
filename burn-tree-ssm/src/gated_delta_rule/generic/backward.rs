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

use super::array::Array;
use super::forward::{Entered, Local, entries};
use super::tiles::{Step, Tiles, fit_columns};
use crate::TreeRecurrence;
use crate::gated_delta_rule::{GatedDeltaRuleSettings, Inputs, Saved};
use burn_tree_kit::dtype::at_least_f32;

type Gradients<B> = (
    FloatTensor<B>,
    FloatTensor<B>,
    FloatTensor<B>,
    FloatTensor<B>,
    FloatTensor<B>,
    FloatTensor<B>,
);

/// What depends on the states, for the windows of one step.
struct StepGradients<B: Backend> {
    /// `dU`, `U` and `R`, `[n, HV, C, DV]`.
    grad_update: Array<B>,
    update: Array<B>,
    residual: Array<B>,
    /// `dV`
    value: Array<B>,
    /// `exp(G) dO H^T`
    query: Array<B>,
    /// `dY H^T + diag(E_last) U dS^T`
    key: Array<B>,
    /// `[n, HV, C, 1]` what the log decays from the entry to the row get through it.
    from_entry: Array<B>,
    /// `[n, HV, C, 1]` what the log decays from the row (exclusive) to the exit get through it.
    to_exit: Array<B>,
    /// `[n, HV, 1, 1]` what all log decays get through the state that passes.
    through: Array<B>,
}

/// See [`crate::TreeSsmOps::gated_delta_rule_backward`].
pub(crate) fn backward<B: Backend>(
    inputs: Inputs<FloatTensor<B>>,
    saved: Saved<FloatTensor<B>>,
    grad_output: FloatTensor<B>,
    grad_states: FloatTensor<B>,
    recurrence: &TreeRecurrence,
    settings: GatedDeltaRuleSettings,
) -> Gradients<B> {
    let (dtype, device) = (inputs.value.dtype(), inputs.value.device());
    let wide = at_least_f32(dtype);
    if recurrence.n_windows() == 0 {
        let zeros = |tensor: FloatTensor<B>| zeros_like(&Array::<B>(tensor)).0;
        return (
            zeros(inputs.query),
            zeros(inputs.key),
            zeros(inputs.value),
            zeros(inputs.log_decay),
            zeros(inputs.beta),
            zeros(inputs.initial_states),
        );
    }
    let tiles = Tiles::<B>::new(recurrence, &device, wide);
    let local = Local::new(&tiles, &inputs, settings);
    // Columns past the length of a window are undefined.
    let inverse = tiles.gather(saved.inverse, 1);
    let inverse = fit_columns(inverse, tiles.size).fill_where_zero(&tiles.mask, 0.0);
    let mixing = local.mixing(&inverse);
    let grad_output = tiles.gather(grad_output, 1);

    let states = Array::<B>(saved.states);
    let initial_states = Array::<B>(inputs.initial_states);
    let steps = entered(
        recurrence,
        &tiles,
        &local,
        &mixing,
        &states,
        &initial_states,
    );

    // Gradients of the states in slots, of initial states, and what the steps give.
    let requested = recurrence.requested_rows().len();
    let grad_states = Array::<B>(grad_states);
    let mut grad_slots: Vec<Option<Array<B>>> = (0..recurrence.n_slots())
        .map(|slot| (slot < requested).then(|| grad_states.part(slot..slot + 1)))
        .collect();
    let mut grad_initial: Vec<Option<Array<B>>> = vec![None; recurrence.n_initial_states()];
    let mut parts: Vec<StepGradients<B>> = Vec::new();
    for (level, entered) in tiles.levels.iter().zip(steps).rev() {
        // Of the states with which the windows of the step start.
        let mut grad_entry: Option<Array<B>> = None;
        for (step, (entry, entered)) in level.iter().zip(entered).rev() {
            let grad_exit = grad_exits(step, grad_entry.take(), &grad_slots, &initial_states);
            let (gradients, grad) = step_gradients(
                &local,
                &mixing,
                step,
                &entry,
                entered,
                &grad_output,
                grad_exit,
            );
            parts.push(gradients);
            grad_entry = Some(grad);
        }
        let grad_entry = grad_entry.expect("a level has a step");
        for (index, path) in level[0].paths.clone().enumerate() {
            let entry = recurrence.path_entries()[path];
            let sum = match entry {
                crate::ENTRY_ZERO => continue,
                entry if entry >= 0 => &mut grad_slots[entry as usize],
                entry => &mut grad_initial[(-2 - entry) as usize],
            };
            let grad = grad_entry.part(index..index + 1);
            *sum = Some(match sum.take() {
                Some(sum) => sum + grad,
                None => grad,
            });
        }
    }
    parts.reverse();
    let join = |part: fn(&StepGradients<B>) -> &Array<B>| {
        Array::cat(parts.iter().map(|step| part(step).clone()).collect(), 0)
    };

    // Inside the windows, all at once.
    let grad_mixing = join(|step| &step.grad_update).dot(&join(|step| &step.residual).t());
    let grad_scores = grad_output.dot(&join(|step| &step.update).t());
    // What passes from row j to row i, and so through all log decays between them.
    let passed = &grad_scores * &local.scores + &grad_mixing * &mixing;
    let grad_scores = grad_scores * &local.decay;
    let weights = grad_mixing * &local.decay;
    let grad_lower = inverse
        .t()
        .dot(&(&weights * local.beta.t()))
        .dot(&inverse.t());
    let grad_lower = -(&tiles.ancestors * grad_lower);
    let similarity = local.similarity(&tiles);
    let grad_beta = (weights * &inverse).sum(2).t() + (&grad_lower * similarity).sum(3);
    let grad_similarity = &local.beta * grad_lower;
    let grad_similarity = &grad_similarity + grad_similarity.t();

    let query = join(|step| &step.query) + grad_scores.dot(&local.key);
    let key = join(|step| &step.key)
        + grad_scores.t().dot(&local.query)
        + grad_similarity.dot(&local.key);
    // From ancestors of row l (columns of `passed`) to l and its descendants (rows of it).
    let heads = local.value.size(1);
    let ancestors = tiles
        .ancestors
        .clone()
        .expand([tiles.count, heads, tiles.size, tiles.size]);
    let passed = passed.dot(&ancestors.t()) + join(|step| &step.from_entry);
    let passed_exit = (&tiles.ancestors * join(|step| &step.to_exit).t()).sum(3)
        + &tiles.to_exit * join(|step| &step.through);
    let log_decay = (&tiles.mask * passed).sum(2).t() + passed_exit;

    let gate = |grad: Array<B>, like: &FloatTensor<B>| {
        let rows = tiles.scatter(grad, 1, wide);
        B::float_reshape(rows, like.shape())
    };
    let group = heads / inputs.key.shape()[1];
    let [key_dim, value_dim] = [2, 3].map(|dim| initial_states.size(dim));
    let unused = || Array::zeros([1, heads, key_dim, value_dim], &device, wide);
    let grad_initial: Vec<_> = grad_initial
        .into_iter()
        .map(|grad| grad.unwrap_or_else(unused))
        .collect();
    (
        tiles.scatter(query.scale(settings.scale), group, dtype.into()),
        tiles.scatter(key, group, dtype.into()),
        tiles.scatter(join(|step| &step.value), 1, dtype.into()),
        gate(log_decay, &inputs.log_decay),
        gate(grad_beta, &inputs.beta),
        match grad_initial.is_empty() {
            true => zeros_like(&initial_states).0,
            false => Array::cat(grad_initial, 0).0,
        },
    )
}

/// For every step of every level, the states with which its windows start, and what follows from
/// them.
fn entered<B: Backend>(
    recurrence: &TreeRecurrence,
    tiles: &Tiles<B>,
    local: &Local<B>,
    mixing: &Array<B>,
    states: &Array<B>,
    initial_states: &Array<B>,
) -> Vec<Vec<(Array<B>, Entered<B>)>> {
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
    tiles.levels.iter().map(of_level).collect()
}

/// The gradients of the states after the windows of a step: from the windows that follow, which
/// are the first ones, and from slots. `None` if there are neither.
fn grad_exits<B: Backend>(
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
fn step_gradients<B: Backend>(
    local: &Local<B>,
    mixing: &Array<B>,
    step: &Step,
    entry: &Array<B>,
    entered: Entered<B>,
    grad_output: &Array<B>,
    grad_exit: Option<Array<B>>,
) -> (StepGradients<B>, Array<B>) {
    let of = |array: &Array<B>| array.part(step.tiles.clone());
    let (query, key) = (of(&local.query), of(&local.key));
    let (from_entry, to_exit) = (of(&local.from_entry), of(&local.to_exit));
    let grad_output = of(grad_output);
    let Entered {
        recalled,
        residual,
        update,
    } = entered;

    let mut grad_update = of(&local.scores).t().dot(&grad_output);
    if let Some(grad_exit) = &grad_exit {
        grad_update = grad_update + &to_exit * key.dot(grad_exit);
    }
    let grad_value = of(mixing).t().dot(&grad_update);
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

fn zeros_like<B: Backend>(array: &Array<B>) -> Array<B> {
    let (shape, device) = (array.0.shape(), array.0.device());
    Array(B::float_zeros(shape, &device, array.0.dtype().into()))
}
