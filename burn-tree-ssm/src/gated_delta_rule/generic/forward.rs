//! The forward pass, and what the backward pass computes again.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{FloatDType, Shape};
use burn_tree_kit::dtype::at_least_f32;

use super::array::Array;
use super::inverse::unit_lower_inverse;
use super::tiles::{Step, Tiles, fit_columns};
use crate::gated_delta_rule::settings::{GatedDeltaRuleSettings, lowest_log_decay};
use crate::gated_delta_rule::tensors::{GatedDeltaRuleInputs, GatedDeltaRuleSaved};
use crate::recurrence::{ENTRY_ZERO, TreeRecurrence};

/// What a window knows without its entry state; first dimensions `[W, HV, ..]`.
pub(super) struct Local<B: Backend> {
    /// `[.., C, DK]`, scaled.
    pub(super) query: Array<B>,
    /// `[.., C, DK]`
    pub(super) key: Array<B>,
    /// `[.., C, DV]`
    pub(super) value: Array<B>,
    /// `[.., C, 1]`
    pub(super) beta: Array<B>,
    /// `[.., C, C]` the `E` of the equations.
    pub(super) decay: Array<B>,
    /// `[.., C, 1]` from the entry to the row, `exp(G)`; 0 in rows that are filled up.
    pub(super) from_entry: Array<B>,
    /// `[.., C, 1]` from the row to the exit, `E_last`; 0 without exit.
    pub(super) to_exit: Array<B>,
    /// `[.., 1, 1]` from the entry to the exit, `exp(G_last)`.
    pub(super) through: Array<B>,
    /// `[.., C, C]` the `P` of the equations.
    pub(super) scores: Array<B>,
}

impl<B: Backend> Local<B> {
    pub(super) fn new(
        tiles: &Tiles<B>,
        inputs: &GatedDeltaRuleInputs<B>,
        settings: GatedDeltaRuleSettings,
    ) -> Self {
        let [rows, heads, _] = inputs.value.shape().dims();
        let group = heads / inputs.key.shape()[1];
        let gate = |tensor: &FloatTensor<B>| {
            let tensor = B::float_reshape(tensor.clone(), Shape::new([rows, heads, 1]));
            tiles.gather(tensor, 1)
        };
        let query = tiles
            .gather(inputs.query.clone(), group)
            .scale(settings.scale);
        let key = tiles.gather(inputs.key.clone(), group);
        let value = tiles.gather(inputs.value.clone(), 1);
        let beta = gate(&inputs.beta);
        // Sums, not products of matrices, which some devices compute in less than f32.
        let lowest = lowest_log_decay(at_least_f32(inputs.value.dtype()));
        let log_decay = gate(&inputs.log_decay).at_least(lowest);
        let pairs = [tiles.count, heads, tiles.size, tiles.size];
        let above = log_decay.t().expand(pairs);
        let log_decay = above.fill_where_zero(&tiles.mask, 0.0).sum(3);
        let last = log_decay.clone().fill_where_zero(&tiles.exit, 0.0).sum(2);

        // Where the mask is 0 the exponent may be large: it is replaced before, not after.
        let exp_in =
            |exponent: Array<B>, mask: &Array<B>| exponent.fill_where_zero(mask, NEVER).exp();
        let decay = exp_in(&log_decay - log_decay.t(), &tiles.mask);
        let scores = query.dot(&key.t()).fill_where_zero(&tiles.mask, 0.0);
        Self {
            scores: scores * &decay,
            from_entry: exp_in(log_decay.clone(), &tiles.real),
            to_exit: exp_in(&last - &log_decay, &tiles.to_exit),
            through: last.exp(),
            query,
            key,
            value,
            beta,
            decay,
        }
    }

    /// `K K^T` between rows and their ancestors: `[W, HV, C, C]`. Between others it may overflow.
    pub(super) fn similarity(&self, tiles: &Tiles<B>) -> Array<B> {
        let similarity = self.key.dot(&self.key.t());
        similarity.fill_where_zero(&tiles.ancestors, 0.0)
    }

    /// `T0`: `[W, HV, C, C]`.
    pub(super) fn inverse(&self, tiles: &Tiles<B>, wide: FloatDType) -> Array<B> {
        unit_lower_inverse(&self.beta * self.similarity(tiles), wide)
    }

    /// `Ag = E . T0 . beta_j`: `[W, HV, C, C]`.
    pub(super) fn mixing(&self, inverse: &Array<B>) -> Array<B> {
        &self.decay * inverse * self.beta.t()
    }
}

/// An exponent whose exponential is zero in every dtype.
const NEVER: f64 = -1e30;

/// A window's part of a step, for which the entry states are known.
pub(super) struct Entered<B: Backend> {
    /// `[n, HV, C, DV]` the `Y` of the equations: `K H`.
    pub(super) recalled: Array<B>,
    /// `[n, HV, C, DV]` the `R`: `V - exp(G) Y`.
    pub(super) residual: Array<B>,
    /// `[n, HV, C, DV]` the `U`.
    pub(super) update: Array<B>,
}

impl<B: Backend> Entered<B> {
    pub(super) fn new(local: &Local<B>, mixing: &Array<B>, step: &Step, entry: &Array<B>) -> Self {
        let of = |array: &Array<B>| array.part(step.tiles.clone());
        let recalled = of(&local.key).dot(entry);
        let residual = of(&local.value) - of(&local.from_entry) * &recalled;
        Self {
            update: of(mixing).dot(&residual),
            recalled,
            residual,
        }
    }

    /// `[n, HV, DK, DV]` the states after the windows of a step.
    pub(super) fn exit(&self, local: &Local<B>, step: &Step, entry: &Array<B>) -> Array<B> {
        let of = |array: &Array<B>| array.part(step.tiles.clone());
        let kept = (of(&local.key) * of(&local.to_exit)).t();
        of(&local.through) * entry + kept.dot(&self.update)
    }
}

/// The states with which the paths of a level start, `[paths, HV, DK, DV]`.
pub(super) fn entries<B: Backend>(
    recurrence: &TreeRecurrence,
    first: &Step,
    slot: impl Fn(usize) -> Array<B>,
    initial_states: &Array<B>,
) -> Array<B> {
    let (device, dtype) = (initial_states.0.device(), initial_states.0.dtype().into());
    let [heads, key_dim, value_dim] = [1, 2, 3].map(|dim| initial_states.size(dim));
    let states = first
        .paths
        .clone()
        .map(|path| match recurrence.path_entries()[path] {
            entry if entry >= 0 => slot(entry as usize),
            ENTRY_ZERO => Array::zeros([1, heads, key_dim, value_dim], &device, dtype),
            entry => {
                let state = (-2 - entry) as usize;
                initial_states.part(state..state + 1)
            }
        });
    Array::cat(states.collect(), 0)
}

/// See [`crate::TreeSsmOps::gated_delta_rule`].
pub(crate) fn forward<B: Backend>(
    inputs: GatedDeltaRuleInputs<B>,
    recurrence: &TreeRecurrence,
    settings: GatedDeltaRuleSettings,
) -> (FloatTensor<B>, GatedDeltaRuleSaved<B>) {
    let (dtype, device) = (inputs.value.dtype(), inputs.value.device());
    let wide = at_least_f32(dtype);
    let [rows, heads, value_dim] = inputs.value.shape().dims();
    let key_dim = inputs.key.shape()[2];
    let columns = recurrence.window_rows();
    if recurrence.n_windows() == 0 {
        let zeros = |shape: [usize; 3]| Array::<B>::zeros(shape, &device, dtype.into()).0;
        let saved = GatedDeltaRuleSaved {
            states: Array::<B>::zeros([1, heads, key_dim, value_dim], &device, wide).0,
            inverse: zeros([rows, heads, columns]),
        };
        return (zeros([rows, heads, value_dim]), saved);
    }
    let tiles = Tiles::<B>::new(recurrence, &device, wide);
    let local = Local::new(&tiles, &inputs, settings);
    let inverse = local.inverse(&tiles, wide);
    let mixing = local.mixing(&inverse);
    let initial_states = Array::<B>(inputs.initial_states);

    let mut slots: Vec<Option<Array<B>>> = vec![None; recurrence.n_slots()];
    let mut outputs = Vec::new();
    for level in &tiles.levels {
        let slot = |slot: usize| slots[slot].clone().expect("written in an earlier level");
        let mut state = entries(recurrence, &level[0], slot, &initial_states);
        for (index, step) in level.iter().enumerate() {
            let of = |array: &Array<B>| array.part(step.tiles.clone());
            let entry = state.part(0..step.tiles.len());
            let entered = Entered::new(&local, &mixing, step, &entry);
            outputs.push(
                of(&local.from_entry) * of(&local.query).dot(&entry)
                    + of(&local.scores).dot(&entered.update),
            );
            if index + 1 < level.len() || !step.slots.is_empty() {
                state = entered.exit(&local, step, &entry);
            }
            for &(tile, slot) in &step.slots {
                slots[slot] = Some(state.part(tile..tile + 1));
            }
        }
    }
    let states = match slots.is_empty() {
        true => Array::zeros([1, heads, key_dim, value_dim], &device, wide),
        false => Array::cat(slots.into_iter().flatten().collect(), 0),
    };
    let output = tiles.scatter(Array::cat(outputs, 0), 1, dtype.into());
    let inverse = fit_columns(inverse, columns);
    let saved = GatedDeltaRuleSaved {
        states: states.0,
        inverse: tiles.scatter(inverse, 1, dtype.into()),
    };
    (output, saved)
}
