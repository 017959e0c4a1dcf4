//! CubeCL runtimes: kernels for f32, f16 and bf16; other dtypes, and the grouped product, take the
//! bodies from primitives.

use std::sync::Arc;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{has_kernels, probed};
use burn_tree_kit::implementation::{Kernels, Unavailable, announce, announce_fallback};

use crate::gather_rows::{self, GatherPlan};
use crate::lm_head::{self, EntropyOutput, HeadGradients, LmHeadPlan};
use crate::{TreeNnOps, decay_gate, gated_rms_norm, l2_norm, rms_norm, swiglu};

/// Refuses tensors of other dtypes than those of the kernels.
fn check_dtypes(tensors: &[&CubeTensor]) -> Result<(), Unavailable> {
    match tensors.iter().find(|tensor| !has_kernels(&[tensor])) {
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
        $module:ident :: $function:ident ($($kernel:expr),*), generic($($generic:expr),*)
    ) => {
        match $check {
            Ok(()) => {
                announce($op, $pass, Kernels::Portable.name());
                probed($module::kernel::$function($($kernel),*))
            }
            Err(reason) => {
                announce_fallback($op, &reason);
                announce($op, $pass, "generic");
                $module::generic::$function::<Self>($($generic),*)
            }
        }
    };
    ($check:expr, $op:literal, $pass:literal, $module:ident :: $function:ident ($($argument:expr),*)) => {
        kernel_if!(
            $check, $op, $pass, $module::$function($($argument),*), generic($($argument),*)
        )
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
            lm_head::kernel::check(&hidden, &head_weight, &plan),
            "lm_head_log_probs",
            "forward",
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
            lm_head::kernel::check(&hidden, &head_weight, &plan),
            "lm_head_log_probs",
            "backward",
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
            check_dtypes(&[&x]),
            "gather_rows",
            "forward",
            gather_rows::forward(x, &plan),
            generic(x, &plan)
        )
    }

    fn gather_rows_backward(grad: FloatTensor<Self>, plan: Arc<GatherPlan>) -> FloatTensor<Self> {
        let dtype = grad.dtype;
        kernel_if!(
            check_dtypes(&[&grad]),
            "gather_rows",
            "backward",
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
            check_dtypes(&[&x, &weight]).and_then(|()| rms_norm::kernel::check(&x, &weight)),
            "rms_norm",
            "forward",
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
            check_dtypes(&[&x, &weight, &grad]).and_then(|()| rms_norm::kernel::check(&x, &weight)),
            "rms_norm",
            "backward",
            rms_norm::backward(x, weight, inverse_rms, grad, zero_centered),
            generic(x, weight, inverse_rms, grad, zero_centered)
        )
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        kernel_if!(
            check_dtypes(&[&gate, &up]),
            "swiglu",
            "forward",
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
            check_dtypes(&[&gate, &up, &grad]),
            "swiglu",
            "backward",
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
            "forward",
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
            "backward",
            decay_gate::backward(a, a_log, dt_bias, grad)
        )
    }

    fn l2_norm(x: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self> {
        kernel_if!(
            check_dtypes(&[&x]).and_then(|()| l2_norm::kernel::check(&x)),
            "l2_norm",
            "forward",
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
            "backward",
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
            "forward",
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
            "backward",
            gated_rms_norm::backward(x, gate, weight, grad, epsilon)
        )
    }
}
