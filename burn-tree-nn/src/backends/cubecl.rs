//! CubeCL runtimes: kernels for f32, f16 and bf16; other dtypes, and the grouped product, take the
//! bodies from primitives.

use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{has_kernels, probed};
use burn_tree_kit::implementation::{Kernels, Unavailable, announce, announce_fallback};

use crate::gather_rows::{self, GatherPlan};
use crate::linear::InputGradientTerm;
use crate::lm_head::{
    self, EntropyOutput, HeadGradients, LmHeadInputs, LmHeadOutputGradients, LmHeadPlan,
};
use crate::ops::TreeNnOps;
use crate::rms_norm::{self, NormScale};
use crate::{decay_gate, gated_rms_norm, l2_norm, linear, swiglu};

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

/// Runs `$kernel` if `$check` takes the arguments, otherwise `$generic`, which uses Burn's
/// primitives.
macro_rules! kernel_or_generic {
    ($op:literal, $pass:literal, $check:expr, $kernel:expr, $generic:expr $(,)?) => {
        match $check {
            Ok(()) => {
                announce($op, $pass, Kernels::Portable.name());
                probed($kernel)
            }
            Err(reason) => {
                announce_fallback($op, &reason);
                announce($op, $pass, "generic");
                $generic
            }
        }
    };
}

impl TreeNnOps for CubeBackend {
    fn lm_head_log_probs(
        inputs: LmHeadInputs<Self>,
        plan: Arc<LmHeadPlan>,
        entropy: EntropyOutput,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        kernel_or_generic!(
            "lm_head_log_probs",
            "forward",
            lm_head::kernels::check(&inputs.hidden, &inputs.head_weight, &plan),
            lm_head::kernels::forward(inputs, &plan, entropy),
            lm_head::generic::forward::<Self>(inputs, &plan, entropy)
        )
    }

    fn lm_head_log_probs_backward(
        inputs: LmHeadInputs<Self>,
        outputs: LmHeadOutputGradients<Self>,
        plan: Arc<LmHeadPlan>,
        gradients: HeadGradients,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernel_or_generic!(
            "lm_head_log_probs",
            "backward",
            lm_head::kernels::check(&inputs.hidden, &inputs.head_weight, &plan),
            lm_head::kernels::backward(inputs, outputs, &plan, gradients),
            lm_head::generic::backward::<Self>(inputs, outputs, &plan, gradients)
        )
    }

    fn gather_rows(x: FloatTensor<Self>, plan: Arc<GatherPlan>) -> FloatTensor<Self> {
        kernel_or_generic!(
            "gather_rows",
            "forward",
            check_dtypes(&[&x]),
            gather_rows::kernel::forward(x, &plan),
            gather_rows::generic::forward::<Self>(x, &plan)
        )
    }

    fn gather_rows_backward(grad: FloatTensor<Self>, plan: Arc<GatherPlan>) -> FloatTensor<Self> {
        let dtype = grad.dtype;
        kernel_or_generic!(
            "gather_rows",
            "backward",
            check_dtypes(&[&grad]),
            gather_rows::kernel::backward(grad, &plan, dtype),
            gather_rows::generic::backward::<Self>(grad, &plan)
        )
    }

    fn linear_output(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        linear::kernel::linear(x, weight)
    }

    fn linear_pair(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        linear::kernel::pair(linear::kernel::linears(x, [first, second]))
    }

    fn linear_triple(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        linear::kernel::triple(linear::kernel::linears(x, [first, second, third]))
    }

    fn linear_grad_input(term: InputGradientTerm<Self>) -> FloatTensor<Self> {
        linear::kernel::grad_input(vec![term])
    }

    fn linear_pair_grad_input(
        first: InputGradientTerm<Self>,
        second: InputGradientTerm<Self>,
    ) -> FloatTensor<Self> {
        linear::kernel::grad_input(vec![first, second])
    }

    fn linear_triple_grad_input(
        first: InputGradientTerm<Self>,
        second: InputGradientTerm<Self>,
        third: InputGradientTerm<Self>,
    ) -> FloatTensor<Self> {
        linear::kernel::grad_input(vec![first, second, third])
    }

    fn linear_grad_weight(x: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        linear::kernel::grad_weights(x, [grad]).remove(0)
    }

    fn linear_pair_grad_weights(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        linear::kernel::pair(linear::kernel::grad_weights(x, [first, second]))
    }

    fn linear_triple_grad_weights(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        linear::kernel::triple(linear::kernel::grad_weights(x, [first, second, third]))
    }

    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
        scale: NormScale,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernel_or_generic!(
            "rms_norm",
            "forward",
            check_dtypes(&[&x, &weight]).and_then(|()| rms_norm::kernel::check(&x, &weight)),
            rms_norm::kernel::forward(x, weight, epsilon, scale),
            rms_norm::generic::forward::<Self>(x, weight, epsilon, scale)
        )
    }

    fn rms_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        inverse_rms: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        scale: NormScale,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernel_or_generic!(
            "rms_norm",
            "backward",
            check_dtypes(&[&x, &weight, &grad]).and_then(|()| rms_norm::kernel::check(&x, &weight)),
            rms_norm::kernel::backward(x, weight, inverse_rms, grad, scale),
            rms_norm::generic::backward::<Self>(x, weight, inverse_rms, grad, scale)
        )
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        kernel_or_generic!(
            "swiglu",
            "forward",
            check_dtypes(&[&gate, &up]),
            swiglu::kernel::forward(gate, up),
            swiglu::generic::forward::<Self>(gate, up)
        )
    }

    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernel_or_generic!(
            "swiglu",
            "backward",
            check_dtypes(&[&gate, &up, &grad]),
            swiglu::kernel::backward(gate, up, grad),
            swiglu::generic::backward::<Self>(gate, up, grad)
        )
    }

    fn decay_gate(
        a: FloatTensor<Self>,
        a_log: FloatTensor<Self>,
        dt_bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        kernel_or_generic!(
            "decay_gate",
            "forward",
            check_dtypes(&[&a, &a_log, &dt_bias]),
            decay_gate::kernel::forward(a, a_log, dt_bias),
            decay_gate::generic::forward::<Self>(a, a_log, dt_bias)
        )
    }

    fn decay_gate_backward(
        a: FloatTensor<Self>,
        a_log: FloatTensor<Self>,
        dt_bias: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        kernel_or_generic!(
            "decay_gate",
            "backward",
            check_dtypes(&[&a, &a_log, &dt_bias]),
            decay_gate::kernel::backward(a, a_log, dt_bias, grad),
            decay_gate::generic::backward::<Self>(a, a_log, dt_bias, grad)
        )
    }

    fn l2_norm(x: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self> {
        kernel_or_generic!(
            "l2_norm",
            "forward",
            check_dtypes(&[&x]).and_then(|()| l2_norm::kernel::check(&x)),
            l2_norm::kernel::forward(x, epsilon),
            l2_norm::generic::forward::<Self>(x, epsilon)
        )
    }

    fn l2_norm_backward(
        x: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        kernel_or_generic!(
            "l2_norm",
            "backward",
            check_dtypes(&[&x]).and_then(|()| l2_norm::kernel::check(&x)),
            l2_norm::kernel::backward(x, grad, epsilon),
            l2_norm::generic::backward::<Self>(x, grad, epsilon)
        )
    }

    fn gated_rms_norm(
        x: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        kernel_or_generic!(
            "gated_rms_norm",
            "forward",
            check_dtypes(&[&x, &weight]).and_then(|()| gated_rms_norm::kernel::check(&x, &weight)),
            gated_rms_norm::kernel::forward(x, gate, weight, epsilon),
            gated_rms_norm::generic::forward::<Self>(x, gate, weight, epsilon)
        )
    }

    fn gated_rms_norm_backward(
        x: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        kernel_or_generic!(
            "gated_rms_norm",
            "backward",
            check_dtypes(&[&x, &weight]).and_then(|()| gated_rms_norm::kernel::check(&x, &weight)),
            gated_rms_norm::kernel::backward(x, gate, weight, grad, epsilon),
            gated_rms_norm::generic::backward::<Self>(x, gate, weight, grad, epsilon)
        )
    }
}
