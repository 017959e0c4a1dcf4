//! CubeCL runtimes: kernels for f32, f16 and bf16; other dtypes, and the grouped product, take the
//! bodies from primitives.

use std::sync::Arc;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;
use burn_tree_kit::cube::{has_kernels, probed};

use crate::gather_rows::{self, GatherPlan};
use crate::lm_head::{self, EntropyOutput, HeadGradients, LmHeadPlan};
use crate::{TreeNnOps, decay_gate, gated_rms_norm, l2_norm, rms_norm, swiglu};

/// Tells who asks (target `burn_tree_nn`, level debug) which implementation of an operation
/// runs.
fn announce(op: &'static str, implementation: &'static str) {
    tracing::debug!(target: "burn_tree_nn", op, implementation);
}

/// Runs the kernel if there is one for these arguments, or else the body from primitives.
macro_rules! kernel_if {
    ($has_kernel:expr, $op:literal, $module:ident :: $function:ident ($($kernel:expr),*), generic($($generic:expr),*)) => {
        if $has_kernel {
            announce($op, "kernel");
            probed($module::kernel::$function($($kernel),*))
        } else {
            announce($op, "primitives");
            $module::generic::$function::<Self>($($generic),*)
        }
    };
}

impl TreeNnOps for CubeBackend {
    fn lm_head_log_probs(
        hidden: FloatTensor<Self>,
        head_weight: FloatTensor<Self>,
        targets: IntTensor<Self>,
        plan: Arc<LmHeadPlan>,
        entropy: EntropyOutput,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        kernel_if!(
            lm_head::kernel::supports(&hidden, &head_weight, &plan),
            "lm_head_log_probs",
            lm_head::forward(hidden, head_weight, targets, &plan, entropy),
            generic(hidden, head_weight, targets, &plan, entropy)
        )
    }

    fn lm_head_log_probs_backward(
        hidden: FloatTensor<Self>,
        head_weight: FloatTensor<Self>,
        targets: IntTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        entropy: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        grad_entropy: FloatTensor<Self>,
        plan: Arc<LmHeadPlan>,
        gradients: HeadGradients,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernel_if!(
            lm_head::kernel::supports(&hidden, &head_weight, &plan),
            "lm_head_log_probs_backward",
            lm_head::backward(
                hidden,
                head_weight,
                targets,
                log_sum_exp,
                entropy,
                grad,
                grad_entropy,
                &plan,
                gradients
            ),
            generic(
                hidden,
                head_weight,
                targets,
                log_sum_exp,
                entropy,
                grad,
                grad_entropy,
                &plan,
                gradients
            )
        )
    }

    fn gather_rows(x: FloatTensor<Self>, plan: Arc<GatherPlan>) -> FloatTensor<Self> {
        kernel_if!(
            has_kernels(&[&x]),
            "gather_rows",
            gather_rows::forward(x, &plan),
            generic(x, &plan)
        )
    }

    fn gather_rows_backward(grad: FloatTensor<Self>, plan: Arc<GatherPlan>) -> FloatTensor<Self> {
        let dtype = grad.dtype;
        kernel_if!(
            has_kernels(&[&grad]),
            "gather_rows_backward",
            gather_rows::backward(grad, &plan, dtype),
            generic(grad, &plan)
        )
    }

    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
        zero_centered: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernel_if!(
            has_kernels(&[&x, &weight]) && rms_norm::kernel::fits(&x, &weight),
            "rms_norm",
            rms_norm::forward(x, weight, epsilon, zero_centered),
            generic(x, weight, epsilon, zero_centered)
        )
    }

    fn rms_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        inverse_rms: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        zero_centered: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernel_if!(
            has_kernels(&[&x, &weight, &grad]) && rms_norm::kernel::fits(&x, &weight),
            "rms_norm_backward",
            rms_norm::backward(x, weight, inverse_rms, grad, zero_centered),
            generic(x, weight, inverse_rms, grad, zero_centered)
        )
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        kernel_if!(
            has_kernels(&[&gate, &up]),
            "swiglu",
            swiglu::forward(gate, up),
            generic(gate, up)
        )
    }

    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernel_if!(
            has_kernels(&[&gate, &up, &grad]),
            "swiglu_backward",
            swiglu::backward(gate, up, grad),
            generic(gate, up, grad)
        )
    }

    fn decay_gate(
        a: FloatTensor<Self>,
        a_log: FloatTensor<Self>,
        dt_bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        kernel_if!(
            check_dtypes(&[&a, &a_log, &dt_bias]),
            "decay_gate",
            "decay_gate",
            decay_gate::forward(a, a_log, dt_bias)
        )
    }

    fn decay_gate_backward(
        a: FloatTensor<Self>,
        a_log: FloatTensor<Self>,
        dt_bias: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        kernel_if!(
            check_dtypes(&[&a, &a_log, &dt_bias]),
            "decay_gate",
            "decay_gate_backward",
            decay_gate::backward(a, a_log, dt_bias, grad)
        )
    }

    fn l2_norm(x: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self> {
        kernel_if!(
            check_dtypes(&[&x]).and_then(|()| l2_norm::kernel::check(&x)),
            "l2_norm",
            "l2_norm",
            l2_norm::forward(x, epsilon)
        )
    }

    fn l2_norm_backward(
        x: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        kernel_if!(
            check_dtypes(&[&x]).and_then(|()| l2_norm::kernel::check(&x)),
            "l2_norm",
            "l2_norm_backward",
            l2_norm::backward(x, grad, epsilon)
        )
    }

    fn gated_rms_norm(
        x: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        kernel_if!(
            check_dtypes(&[&x, &weight]).and_then(|()| gated_rms_norm::kernel::check(&x, &weight)),
            "gated_rms_norm",
            "gated_rms_norm",
            gated_rms_norm::forward(x, gate, weight, epsilon)
        )
    }

    fn gated_rms_norm_backward(
        x: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        kernel_if!(
            check_dtypes(&[&x, &weight]).and_then(|()| gated_rms_norm::kernel::check(&x, &weight)),
            "gated_rms_norm",
            "gated_rms_norm_backward",
            gated_rms_norm::backward(x, gate, weight, grad, epsilon)
        )
    }
}
