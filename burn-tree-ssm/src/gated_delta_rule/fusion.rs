//! Shapes and dtypes of the outputs, which Fusion needs before anything runs.

use burn::backend::fusion::custom::TensorSpec;
use burn::tensor::Shape;
use burn_tree_kit::dtype::at_least_f32;

use super::settings::GatedDeltaRuleSettings;
use super::tensors::{
    GatedDeltaRuleGradientsMetadata, GatedDeltaRuleInputsMetadata, GatedDeltaRuleSavedMetadata,
};
use crate::recurrence::TreeRecurrence;

/// Of [`TreeSsmOps::gated_delta_rule`](crate::TreeSsmOps::gated_delta_rule).
pub(crate) fn forward(
    inputs: &GatedDeltaRuleInputsMetadata,
    recurrence: &TreeRecurrence,
    _settings: &GatedDeltaRuleSettings,
) -> (TensorSpec, GatedDeltaRuleSavedMetadata) {
    let (query, value) = (&inputs.query, &inputs.value);
    let [rows, heads, value_dim] = value.shape.dims();
    let slots = recurrence.n_slots().max(1);
    let states = Shape::new([slots, heads, query.shape[2], value_dim]);
    let inverse = Shape::new([rows, heads, recurrence.window_rows()]);
    let saved = GatedDeltaRuleSavedMetadata {
        states: TensorSpec::new(states, at_least_f32(value.dtype).into()),
        inverse: TensorSpec::new(inverse, value.dtype),
    };
    (value.clone(), saved)
}

/// Of [`TreeSsmOps::gated_delta_rule_backward`](crate::TreeSsmOps::gated_delta_rule_backward).
pub(crate) fn backward(
    inputs: &GatedDeltaRuleInputsMetadata,
    _saved: &GatedDeltaRuleSavedMetadata,
    _grad_output: &TensorSpec,
    _grad_states: &TensorSpec,
    _recurrence: &TreeRecurrence,
    _settings: &GatedDeltaRuleSettings,
) -> GatedDeltaRuleGradientsMetadata {
    let inputs = inputs.clone();
    GatedDeltaRuleGradientsMetadata {
        query: inputs.query,
        key: inputs.key,
        value: inputs.value,
        log_decay: inputs.log_decay,
        beta: inputs.beta,
        initial_states: inputs.initial_states,
    }
}
