//! The operations that backends may override.

use std::sync::Arc;

use burn::backend::{Backend, backend_extension, tensor::FloatTensor};

use crate::causal_conv1d::generic as convolution;
use crate::causal_conv1d::settings::ConvolutionSettings;
use crate::causal_conv1d::tensors::{ConvolutionGradients, ConvolutionInputs, ConvolutionOutputs};
use crate::gated_delta_rule::generic as delta_rule;
use crate::gated_delta_rule::settings::GatedDeltaRuleSettings;
use crate::gated_delta_rule::tensors::{
    GatedDeltaRuleGradients, GatedDeltaRuleInputs, GatedDeltaRuleSaved,
};
use crate::recurrence::{ConvolutionPlan, TreeRecurrence};

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
    /// The gated delta rule. Returns the output `[R, HV, DV]` in the dtype of the value, zero in
    /// padding, and what the backward pass needs. Among the latter are the states after the
    /// requested rows, which are results too.
    #[fusion(meta = crate::gated_delta_rule::fusion::forward)]
    fn gated_delta_rule(
        #[extension_type] inputs: GatedDeltaRuleInputs<Self>,
        recurrence: TreeRecurrence,
        settings: GatedDeltaRuleSettings,
    ) -> (FloatTensor<Self>, GatedDeltaRuleSaved<Self>) {
        delta_rule::forward::<Self>(inputs, &recurrence, settings)
    }

    /// Gradients of the inputs from those of the output, `grad_output [R, HV, DV]`, and of the
    /// states after the requested rows, `grad_states [max(X, 1), HV, DK, DV]` (ignored if `X` is
    /// 0). `saved` is what the forward pass returned.
    #[fusion(meta = crate::gated_delta_rule::fusion::backward)]
    fn gated_delta_rule_backward(
        #[extension_type] inputs: GatedDeltaRuleInputs<Self>,
        #[extension_type] saved: GatedDeltaRuleSaved<Self>,
        grad_output: FloatTensor<Self>,
        grad_states: FloatTensor<Self>,
        recurrence: TreeRecurrence,
        settings: GatedDeltaRuleSettings,
    ) -> GatedDeltaRuleGradients<Self> {
        let grads = (grad_output, grad_states);
        delta_rule::backward::<Self>(inputs, saved, grads, &recurrence, settings)
    }

    /// Causal convolution of each channel along the paths.
    #[fusion(meta = crate::causal_conv1d::fusion::forward)]
    fn causal_conv1d(
        #[extension_type] inputs: ConvolutionInputs<Self>,
        plan: Arc<ConvolutionPlan>,
        settings: ConvolutionSettings,
    ) -> ConvolutionOutputs<Self> {
        convolution::forward::<Self>(inputs, &plan, settings)
    }

    /// Gradients of the inputs from those of the outputs.
    #[fusion(meta = crate::causal_conv1d::fusion::backward)]
    fn causal_conv1d_backward(
        #[extension_type] inputs: ConvolutionInputs<Self>,
        #[extension_type] grads: ConvolutionOutputs<Self>,
        plan: Arc<ConvolutionPlan>,
        settings: ConvolutionSettings,
    ) -> ConvolutionGradients<Self> {
        convolution::backward::<Self>(inputs, grads, &plan, settings)
    }
}
