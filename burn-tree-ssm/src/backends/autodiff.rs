//! Autodiff: forward passes that record hand-written gradients.

use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use crate::causal_conv1d::{self, ConvolutionSettings};
use crate::gated_delta_rule::{self, GatedDeltaRuleSettings, Inputs};
use crate::{ConvolutionPlan, TreeRecurrence, TreeSsmOps};

impl<B: TreeSsmOps, C: CheckpointStrategy> TreeSsmOps for Autodiff<B, C> {
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
        let inputs = Inputs {
            query,
            key,
            value,
            log_decay,
            beta,
            initial_states,
        };
        gated_delta_rule::autodiff_forward::<B, C>(inputs, recurrence, settings)
    }

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
        causal_conv1d::autodiff_forward::<B, C>(x, weight, initial_tails, plan, settings)
    }
}
