//! CubeCL runtimes: kernels for f32, f16 and bf16; other dtypes, and shapes too large for them, take
//! the bodies from primitives.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{has_kernels, probed};

use crate::causal_conv1d::{self, ConvolutionSettings};
use crate::gated_delta_rule::kernels::{self, Dims, Implementation};
use crate::gated_delta_rule::{self, GatedDeltaRuleSettings, Inputs, Saved};
use crate::{ConvolutionPlan, TreeRecurrence, TreeSsmOps};

/// Tells who asks (target `burn_tree_ssm`, level debug) which implementation of an operation runs.
fn announce(op: &'static str, implementation: &'static str) {
    tracing::debug!(target: "burn_tree_ssm", op, implementation);
}

/// Tells who asks (level warn), once for each reason, that an operation has no kernel for its
/// arguments and takes its body from primitives.
fn fall_back(op: &'static str, reason: &str) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let text = format!("{op} from primitives: {reason}");
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if !told.contains(&text) {
        tracing::warn!(target: "burn_tree_ssm", reason = text.as_str());
        told.insert(text);
    }
}

/// Refuses tensors of other dtypes than those of the kernels.
fn check_dtypes(tensors: &[&CubeTensor]) -> Result<(), String> {
    let without = tensors.iter().find(|tensor| !has_kernels(&[tensor]));
    match without {
        None => Ok(()),
        Some(tensor) => Err(format!(
            "{:?} tensors; f32, f16 or bf16 are needed",
            tensor.dtype
        )),
    }
}

/// Runs the kernel if it takes these arguments, or else the body from primitives. `$pass` is what is
/// announced.
macro_rules! kernel_if {
    (
        $check:expr, $op:literal, $pass:literal,
        $module:ident :: $function:ident ($($argument:expr),*)
    ) => {
        match $check {
            Ok(()) => {
                announce($pass, "kernel");
                probed($module::kernel::$function($($argument),*))
            }
            Err(reason) => {
                fall_back($op, &reason);
                announce($pass, "primitives");
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
                kernels::launched("generic", "forward");
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
                kernels::launched("generic", "backward");
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
            "causal_conv1d",
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
            "causal_conv1d_backward",
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
) -> Option<Implementation> {
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
        fall_back("gated_delta_rule", &reason.to_string());
        None
    })
}
