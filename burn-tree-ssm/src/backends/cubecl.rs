//! CubeCL runtimes: kernels for f32, f16 and bf16; other dtypes, and shapes too large for them, take
//! the bodies from primitives.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{has_kernels, probed};

use crate::causal_conv1d::{self, ConvolutionSettings};
use burn_tree_kit::implementation::{Kernels, Unavailable, announce, announce_fallback};

use crate::gated_delta_rule::kernels::{self, Dims};
use crate::gated_delta_rule::{self, GatedDeltaRuleSettings, Inputs, Saved};
use crate::{ConvolutionPlan, TreeRecurrence, TreeSsmOps};

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

/// Runs the kernel if it takes these arguments, or else the body from primitives.
macro_rules! kernel_if {
    (
        $check:expr, $op:literal, $pass:literal,
        $module:ident :: $function:ident ($($argument:expr),*)
    ) => {
        match $check {
            Ok(()) => {
                announce($op, $pass, Kernels::Portable.name());
                probed($module::kernel::$function($($argument),*))
            }
            Err(reason) => {
                announce_fallback($op, &reason);
                announce($op, $pass, "generic");
                $module::generic::$function::<Self>($($argument),*)
            }
        }
    };
}

impl TreeSsmOps for CubeBackend {
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
        match implementation(&inputs, &recurrence, settings) {
            Some(implementation) => {
                let it = kernels::forward(implementation, inputs, &recurrence, settings.scale);
                probed((it.output, it.states, it.inverse))
            }
            None => {
                announce(kernels::OP, "forward", "generic");
                gated_delta_rule::generic::forward::<Self>(inputs, &recurrence, settings)
            }
        }
    }

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
        let inputs = Inputs {
            query,
            key,
            value,
            log_decay,
            beta,
            initial_states,
        };
        let saved = Saved { states, inverse };
        match implementation(&inputs, &recurrence, settings) {
            Some(implementation) => {
                let it = kernels::backward(
                    implementation,
                    inputs,
                    saved,
                    grad_output,
                    grad_states,
                    &recurrence,
                    settings.scale,
                );
                let gates = (it.log_decay, it.beta, it.initial_states);
                probed((it.query, it.key, it.value, gates.0, gates.1, gates.2))
            }
            None => {
                announce(kernels::OP, "backward", "generic");
                gated_delta_rule::generic::backward::<Self>(
                    inputs,
                    saved,
                    grad_output,
                    grad_states,
                    &recurrence,
                    settings,
                )
            }
        }
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
        kernel_if!(
            check_dtypes(&[&x, &weight]).and_then(|()| causal_conv1d::kernel::check(&plan)),
            "causal_conv1d",
            "forward",
            causal_conv1d::forward(x, weight, initial_tails, &plan, settings)
        )
    }

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
        let grads = [grad_first, grad_second, grad_third];
        kernel_if!(
            check_dtypes(&[&x, &weight]).and_then(|()| causal_conv1d::kernel::check(&plan)),
            "causal_conv1d",
            "backward",
            causal_conv1d::backward(x, weight, initial_tails, grads, grad_tails, &plan, settings)
        )
    }
}

/// What runs on the tensors' device; `None` for the bodies from primitives, with a warning unless they
/// are asked for. (The public function refused what was asked for and cannot run.)
fn implementation(
    inputs: &Inputs<FloatTensor<CubeBackend>>,
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
