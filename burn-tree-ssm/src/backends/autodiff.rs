//! Autodiff: forward passes that record hand-written gradients.

use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use crate::causal_conv1d::{self, ConvolutionInputs, ConvolutionOutputs, ConvolutionSettings};
use crate::gated_delta_rule::{
    self, GatedDeltaRuleInputs, GatedDeltaRuleSaved, GatedDeltaRuleSettings,
};
use crate::ops::TreeSsmOps;
use crate::recurrence::{ConvolutionPlan, TreeRecurrence};

impl<B: TreeSsmOps, C: CheckpointStrategy> TreeSsmOps for Autodiff<B, C> {
    fn gated_delta_rule(
        inputs: GatedDeltaRuleInputs<Self>,
        recurrence: TreeRecurrence,
        settings: GatedDeltaRuleSettings,
    ) -> (FloatTensor<Self>, GatedDeltaRuleSaved<Self>) {
        gated_delta_rule::autodiff::forward::<B, C>(inputs, recurrence, settings)
    }

    fn causal_conv1d(
        inputs: ConvolutionInputs<Self>,
        plan: Arc<ConvolutionPlan>,
        settings: ConvolutionSettings,
    ) -> ConvolutionOutputs<Self> {
        causal_conv1d::autodiff::forward::<B, C>(inputs, plan, settings)
    }
}
