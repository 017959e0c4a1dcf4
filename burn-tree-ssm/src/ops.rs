//! The operations that backends may override.

// The macro that generates the implementations takes tuples.
#![allow(clippy::type_complexity)]

use std::sync::Arc;

use burn::backend::{Backend, backend_extension, tensor::FloatTensor};

use crate::causal_conv1d::{self, ConvolutionSettings};
use crate::gated_delta_rule::{self, GatedDeltaRuleSettings};
use crate::{ConvolutionPlan, TreeRecurrence};

/// Operations of this crate, on rows of the flattened batch, `R = B * N`. The default bodies are
/// built from Burn's primitives; `Autodiff` has hand-written gradients that call the `_backward`
/// methods of the backend below it.
///
/// Arguments are checked by the public functions, not here.
#[backend_extension(
    Cube: cfg(feature = "cubecl-backend"),
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    LibTorch: cfg(feature = "tch"),
    Autodiff,
    Fusion: cfg(feature = "fusion"),
)]
pub trait TreeSsmOps: Backend {
    /// The gated delta rule: `query [R, HK, DK]`, `key [R, HK, DK]`, `value [R, HV, DV]` of one
    /// dtype; `log_decay [R, HV]`, `beta [R, HV]`, `initial_states [max(G, 1), HV, DK, DV]` in f32
    /// (f64 if the value is). Lower log decays than -104 (-750) count as that.
    ///
    /// Returns
    /// * the output `[R, HV, DV]` in the dtype of the value, zero in padding;
    /// * the states `[max(S, 1), HV, DK, DV]` of all slots in f32 (f64), of which the first `X`,
    ///   those after the requested rows, are differentiable;
    /// * for the backward pass, in the dtype of the value, `T0 [R, HV, C]`: the inverse of
    ///   `I + diag(beta) K K^T` (strictly below the diagonal, between a row and its ancestors in
    ///   the window), row `i` of the batch with column `j` of its window. Padding rows and
    ///   columns past the window's length are undefined.
    #[fusion(meta = meta::gated_delta_rule)]
    fn gated_delta_rule(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        log_decay: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        initial_states: FloatTensor<Self>,
        recurrence: TreeRecurrence,
        settings: GatedDeltaRuleSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        gated_delta_rule::generic::forward::<Self>(
            gated_delta_rule::Inputs {
                query,
                key,
                value,
                log_decay,
                beta,
                initial_states,
            },
            &recurrence,
            settings,
        )
    }

    /// Gradients of query, key, value, log decay, beta and initial states, each in the shape and
    /// dtype of its input, from the gradients of the output and of the states after the requested
    /// rows, `grad_states [max(X, 1), HV, DK, DV]` (ignored if `X` is 0); `states` and `inverse`
    /// are those of the forward pass.
    #[fusion(meta = meta::gated_delta_rule_backward)]
    fn gated_delta_rule_backward(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        log_decay: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        initial_states: FloatTensor<Self>,
        states: FloatTensor<Self>,
        inverse: FloatTensor<Self>,
        grad_output: FloatTensor<Self>,
        grad_states: FloatTensor<Self>,
        recurrence: TreeRecurrence,
        settings: GatedDeltaRuleSettings,
    ) -> (
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
    ) {
        gated_delta_rule::generic::backward::<Self>(
            gated_delta_rule::Inputs {
                query,
                key,
                value,
                log_decay,
                beta,
                initial_states,
            },
            gated_delta_rule::Saved { states, inverse },
            grad_output,
            grad_states,
            &recurrence,
            settings,
        )
    }

    /// Causal convolution of each channel along the paths: `x [R, C]`, `weight [C, K]`,
    /// `initial_tails [max(G (K-1), 1), C]` in the dtype of `x`.
    ///
    /// Returns the three parts of the output, `[R, part]` each (`[1, 1]` and undefined for parts
    /// without channels), and the tails after the requested rows `[max(X (K-1), 1), C]` (undefined
    /// if there are none), all in the dtype of `x`.
    #[fusion(meta = meta::causal_conv1d)]
    fn causal_conv1d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        initial_tails: FloatTensor<Self>,
        plan: Arc<ConvolutionPlan>,
        settings: ConvolutionSettings,
    ) -> (
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
    ) {
        causal_conv1d::generic::forward::<Self>(x, weight, initial_tails, &plan, settings)
    }

    /// Gradients of `x`, `weight` and `initial_tails` from those of the outputs (parts without
    /// channels are not read, nor are tails if there are none).
    #[fusion(meta = |x, weight, tails, _, _, _, _, _, _| (x.clone(), weight.clone(), tails.clone()))]
    fn causal_conv1d_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        initial_tails: FloatTensor<Self>,
        grad_first: FloatTensor<Self>,
        grad_second: FloatTensor<Self>,
        grad_third: FloatTensor<Self>,
        grad_tails: FloatTensor<Self>,
        plan: Arc<ConvolutionPlan>,
        settings: ConvolutionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let grad_outputs = [grad_first, grad_second, grad_third];
        causal_conv1d::generic::backward::<Self>(
            x,
            weight,
            initial_tails,
            grad_outputs,
            grad_tails,
            &plan,
            settings,
        )
    }
}

/// Shapes and dtypes of the outputs, told to Fusion before anything runs.
#[cfg(feature = "fusion")]
mod meta {
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    use super::*;
    use burn_tree_kit::dtype::at_least_f32;

    pub(super) fn gated_delta_rule(
        query: &TensorSpec,
        _key: &TensorSpec,
        value: &TensorSpec,
        _log_decay: &TensorSpec,
        _beta: &TensorSpec,
        _initial_states: &TensorSpec,
        recurrence: &TreeRecurrence,
        _settings: &GatedDeltaRuleSettings,
    ) -> (TensorSpec, TensorSpec, TensorSpec) {
        let [rows, heads, value_dim] = value.shape.dims();
        let slots = recurrence.n_slots().max(1);
        let states = Shape::new([slots, heads, query.shape[2], value_dim]);
        let inverse = Shape::new([rows, heads, recurrence.window_rows()]);
        (
            value.clone(),
            TensorSpec::new(states, at_least_f32(value.dtype).into()),
            TensorSpec::new(inverse, value.dtype),
        )
    }

    pub(super) fn gated_delta_rule_backward(
        query: &TensorSpec,
        key: &TensorSpec,
        value: &TensorSpec,
        log_decay: &TensorSpec,
        beta: &TensorSpec,
        initial_states: &TensorSpec,
        _states: &TensorSpec,
        _inverse: &TensorSpec,
        _grad_output: &TensorSpec,
        _grad_states: &TensorSpec,
        _recurrence: &TreeRecurrence,
        _settings: &GatedDeltaRuleSettings,
    ) -> (
        TensorSpec,
        TensorSpec,
        TensorSpec,
        TensorSpec,
        TensorSpec,
        TensorSpec,
    ) {
        (
            query.clone(),
            key.clone(),
            value.clone(),
            log_decay.clone(),
            beta.clone(),
            initial_states.clone(),
        )
    }

    pub(super) fn causal_conv1d(
        x: &TensorSpec,
        _weight: &TensorSpec,
        _initial_tails: &TensorSpec,
        plan: &Arc<ConvolutionPlan>,
        settings: &ConvolutionSettings,
    ) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
        let [first, second, third] = settings.parts.map(|channels| {
            let shape = match channels {
                0 => [1, 1],
                channels => [plan.rows(), channels],
            };
            TensorSpec::new(Shape::new(shape), x.dtype)
        });
        let tail_rows = plan.requested_sources().len().max(1);
        let tails = TensorSpec::new(Shape::new([tail_rows, x.shape[1]]), x.dtype);
        (first, second, third, tails)
    }
}
