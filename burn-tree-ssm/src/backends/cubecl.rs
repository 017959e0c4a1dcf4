//! CubeCL runtimes: kernels for f32, f16 and bf16. Other dtypes, and shapes too large for the
//! kernels, take the bodies from primitives.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{has_kernels, probe};
use burn_tree_kit::implementation::{Kernels, Unavailable, announce, announce_fallback};

use crate::causal_conv1d::{
    self, ConvolutionGradients, ConvolutionInputs, ConvolutionOutputs, ConvolutionSettings,
};
use crate::gated_delta_rule::kernels;
use crate::gated_delta_rule::kernels::call::{Dims, Gradients, Inputs, Saved};
use crate::gated_delta_rule::{self, GatedDeltaRuleSettings};
use crate::ops::TreeSsmOps;
use crate::recurrence::{ConvolutionPlan, TreeRecurrence};

/// The convolution, as events name it.
const CONVOLUTION: &str = "causal_conv1d";

impl TreeSsmOps for CubeBackend {
    fn gated_delta_rule(
        inputs: Inputs,
        recurrence: TreeRecurrence,
        settings: GatedDeltaRuleSettings,
    ) -> (FloatTensor<Self>, Saved) {
        match implementation(&inputs, &recurrence, settings) {
            Some(chosen) => {
                let (output, saved) = kernels::forward(chosen, inputs, &recurrence, settings.scale);
                probe(&output);
                (output, saved)
            }
            None => {
                announce(kernels::OP, "forward", "generic");
                gated_delta_rule::generic::forward::<Self>(inputs, &recurrence, settings)
            }
        }
    }

    fn gated_delta_rule_backward(
        inputs: Inputs,
        saved: Saved,
        grad_output: FloatTensor<Self>,
        grad_states: FloatTensor<Self>,
        recurrence: TreeRecurrence,
        settings: GatedDeltaRuleSettings,
    ) -> Gradients {
        let grads = (grad_output, grad_states);
        match implementation(&inputs, &recurrence, settings) {
            Some(chosen) => {
                let scale = settings.scale;
                let gradients = kernels::backward(chosen, inputs, saved, grads, &recurrence, scale);
                probe(&gradients.query);
                gradients
            }
            None => {
                announce(kernels::OP, "backward", "generic");
                gated_delta_rule::generic::backward::<Self>(
                    inputs,
                    saved,
                    grads,
                    &recurrence,
                    settings,
                )
            }
        }
    }

    fn causal_conv1d(
        inputs: ConvolutionInputs<Self>,
        plan: Arc<ConvolutionPlan>,
        settings: ConvolutionSettings,
    ) -> ConvolutionOutputs<Self> {
        if has_convolution_kernels(&inputs, &plan, "forward") {
            let outputs = causal_conv1d::kernels::forward(inputs, &plan, settings);
            probe(&outputs.first);
            outputs
        } else {
            causal_conv1d::generic::forward::<Self>(inputs, &plan, settings)
        }
    }

    fn causal_conv1d_backward(
        inputs: ConvolutionInputs<Self>,
        grads: ConvolutionOutputs<Self>,
        plan: Arc<ConvolutionPlan>,
        settings: ConvolutionSettings,
    ) -> ConvolutionGradients<Self> {
        if has_convolution_kernels(&inputs, &plan, "backward") {
            let gradients = causal_conv1d::kernels::backward(inputs, grads, &plan, settings);
            probe(&gradients.x);
            gradients
        } else {
            causal_conv1d::generic::backward::<Self>(inputs, grads, &plan, settings)
        }
    }
}

/// The kernels of the gated delta rule that run on the device of the tensors; `None` for the bodies
/// from primitives, with a warning unless they are asked for. (The public function has refused
/// kernels that are asked for and cannot run.)
fn implementation(
    inputs: &Inputs,
    recurrence: &TreeRecurrence,
    settings: GatedDeltaRuleSettings,
) -> Option<Kernels> {
    let value = &inputs.value;
    let dims = Dims::new(&inputs.query, value);
    kernels::select(
        settings.implementation,
        &value.device,
        value.dtype(),
        &dims,
        recurrence.window_rows(),
    )
    .unwrap_or_else(|reason| {
        announce_fallback(kernels::OP, &reason);
        None
    })
}

/// Whether kernels of the convolution run, which is announced; with a warning if not.
fn has_convolution_kernels(
    inputs: &ConvolutionInputs<CubeBackend>,
    plan: &ConvolutionPlan,
    pass: &'static str,
) -> bool {
    let available = check_dtypes(&[&inputs.x, &inputs.weight])
        .and_then(|()| causal_conv1d::kernels::check(plan));
    let name = match &available {
        Ok(()) => Kernels::Portable.name(),
        Err(reason) => {
            announce_fallback(CONVOLUTION, reason);
            "generic"
        }
    };
    announce(CONVOLUTION, pass, name);
    available.is_ok()
}

/// Refuses tensors of other dtypes than those of the kernels.
fn check_dtypes(tensors: &[&CubeTensor]) -> Result<(), Unavailable> {
    let without = tensors.iter().find(|tensor| !has_kernels(&[tensor]));
    match without {
        None => Ok(()),
        Some(tensor) => Err(Unavailable(format!(
            "{:?} tensors; f32, f16 or bf16 are needed",
            tensor.dtype
        ))),
    }
}
