//! The operations that backends may override.

use std::sync::Arc;

use burn::backend::{Backend, backend_extension, tensor::FloatTensor};

use crate::gather_rows::{self, GatherPlan};
use crate::linear::InputGradientTerm;
use crate::lm_head::{
    self, EntropyOutput, HeadGradients, LmHeadInputs, LmHeadOutputGradients, LmHeadPlan,
};
use crate::rms_norm::{self, NormScale};
use crate::{decay_gate, gated_rms_norm, grouped_linear, l2_norm, linear, swiglu};

/// The operations of this crate, as backends implement them. The default bodies are built from
/// Burn's primitives. `Autodiff` has hand-written gradients that call the `_backward` methods of
/// the backend below it.
///
/// The public functions check the arguments; these methods do not.
#[backend_extension(
    Cube: cfg(feature = "cubecl-backend"),
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    LibTorch: cfg(feature = "tch"),
    Autodiff,
    Fusion: cfg(feature = "fusion"),
)]
pub trait TreeNnOps: Backend {
    /// Log-probabilities of targets: log-probabilities `[n]`, log-sum-exp of the logits of each
    /// projected row `[projected rows]`, and entropies `[n]` (zeros with [`EntropyOutput::None`]),
    /// all in at least f32. The first are differentiable, and so are the last with
    /// [`EntropyOutput::Differentiable`].
    #[fusion(meta = meta::lm_head_log_probs)]
    fn lm_head_log_probs(
        #[extension_type] inputs: LmHeadInputs<Self>,
        plan: Arc<LmHeadPlan>,
        entropy: EntropyOutput,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        lm_head::generic::forward::<Self>(inputs, &plan, entropy)
    }

    /// Gradients of the hidden states and of the head, each in its own dtype. Without
    /// [`HeadGradients::head`] the second is `[1, 1]` and zero.
    #[fusion(meta = meta::lm_head_log_probs_backward)]
    fn lm_head_log_probs_backward(
        #[extension_type] inputs: LmHeadInputs<Self>,
        #[extension_type] outputs: LmHeadOutputGradients<Self>,
        plan: Arc<LmHeadPlan>,
        gradients: HeadGradients,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        lm_head::generic::backward::<Self>(inputs, outputs, &plan, gradients)
    }

    /// Rows by index: `x [R, D]` -> `[n, D]` in the dtype of `x`.
    #[fusion(meta = meta::gather_rows)]
    fn gather_rows(x: FloatTensor<Self>, plan: Arc<GatherPlan>) -> FloatTensor<Self> {
        gather_rows::generic::forward::<Self>(x, &plan)
    }

    /// Gradient of `x`, `[R, D]`, for the gradient `grad [n, D]` of the gathered rows.
    #[fusion(meta = meta::gather_rows_backward)]
    fn gather_rows_backward(grad: FloatTensor<Self>, plan: Arc<GatherPlan>) -> FloatTensor<Self> {
        gather_rows::generic::backward::<Self>(grad, &plan)
    }

    /// `x [R, K]`, `weight [K, N]` -> `x weight [R, N]`, all of one dtype.
    #[fusion(meta = meta::linear)]
    fn linear_output(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        linear::generic::linear::<Self>(x, weight)
    }

    /// The products of `x [R, K]` and two weights `[K, N]`.
    #[fusion(meta = |x, first, second| (meta::linear(x, first), meta::linear(x, second)))]
    fn linear_pair(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        (
            Self::linear_output(x.clone(), first),
            Self::linear_output(x, second),
        )
    }

    /// The products of `x [R, K]` and three weights `[K, N]`.
    #[fusion(meta = |x, first, second, third| (
        meta::linear(x, first),
        meta::linear(x, second),
        meta::linear(x, third),
    ))]
    fn linear_triple(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (first, second) = Self::linear_pair(x.clone(), first, second);
        (first, second, Self::linear_output(x, third))
    }

    /// Gradient of the input `[R, K]` of a product.
    #[fusion(meta = meta::linear_grad_input)]
    fn linear_grad_input(#[extension_type] term: InputGradientTerm<Self>) -> FloatTensor<Self> {
        linear::generic::grad_input::<Self>(vec![term])
    }

    /// Gradient of the input `[R, K]` of two products: the sum of both terms.
    #[fusion(meta = |first, _| meta::linear_grad_input(first))]
    fn linear_pair_grad_input(
        #[extension_type] first: InputGradientTerm<Self>,
        #[extension_type] second: InputGradientTerm<Self>,
    ) -> FloatTensor<Self> {
        linear::generic::grad_input::<Self>(vec![first, second])
    }

    /// Gradient of the input `[R, K]` of three products: the sum of all terms.
    #[fusion(meta = |first, _, _| meta::linear_grad_input(first))]
    fn linear_triple_grad_input(
        #[extension_type] first: InputGradientTerm<Self>,
        #[extension_type] second: InputGradientTerm<Self>,
        #[extension_type] third: InputGradientTerm<Self>,
    ) -> FloatTensor<Self> {
        linear::generic::grad_input::<Self>(vec![first, second, third])
    }

    /// Gradient of the weight, `[K, N]`, for `x [R, K]` and the gradient `grad [R, N]` of the
    /// product.
    #[fusion(meta = meta::linear_grad_weight)]
    fn linear_grad_weight(x: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        linear::generic::grad_weight::<Self>(x, grad)
    }

    /// Gradients of two weights of the same `x [R, K]`.
    #[fusion(meta = |x, first, second| (
        meta::linear_grad_weight(x, first),
        meta::linear_grad_weight(x, second),
    ))]
    fn linear_pair_grad_weights(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        (
            Self::linear_grad_weight(x.clone(), first),
            Self::linear_grad_weight(x, second),
        )
    }

    /// Gradients of three weights of the same `x [R, K]`.
    #[fusion(meta = |x, first, second, third| (
        meta::linear_grad_weight(x, first),
        meta::linear_grad_weight(x, second),
        meta::linear_grad_weight(x, third),
    ))]
    fn linear_triple_grad_weights(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        (
            Self::linear_grad_weight(x.clone(), first),
            Self::linear_grad_weight(x.clone(), second),
            Self::linear_grad_weight(x, third),
        )
    }

    /// One matrix product per group of rows: `x [R, I]`, `weight [E, I, O]` -> `[R, O]`, all of one
    /// dtype. Group `e` has the next `group_sizes[e]` rows.
    #[fusion(meta = meta::grouped_linear)]
    fn grouped_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        group_sizes: Arc<Vec<usize>>,
    ) -> FloatTensor<Self> {
        grouped_linear::generic::forward::<Self>(x, weight, &group_sizes)
    }

    /// Gradients of `x` and `weight` for the gradient `grad [R, O]` of the product.
    #[fusion(meta = |x, weight, _, _| (x.clone(), weight.clone()))]
    fn grouped_linear_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        group_sizes: Arc<Vec<usize>>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        grouped_linear::generic::backward::<Self>(x, weight, grad, &group_sizes)
    }

    /// Root-mean-square norm: `x [R, D]`, `weight [D]` -> `y [R, D]` in the dtype of `x`, and the
    /// inverse root mean square `[R, 1]` in at least f32. Only the first is differentiable.
    #[fusion(meta = meta::rms_norm)]
    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
        scale: NormScale,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        rms_norm::generic::forward::<Self>(x, weight, epsilon, scale)
    }

    /// Gradients of `x` and `weight` for the gradient `grad [R, D]` of `y`.
    #[fusion(meta = |x, weight, _, _, _| (x.clone(), weight.clone()))]
    fn rms_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        inverse_rms: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        scale: NormScale,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        rms_norm::generic::backward::<Self>(x, weight, inverse_rms, grad, scale)
    }

    /// `silu(gate) * up`, all of one shape and dtype.
    #[fusion(dtype = gate, shape = gate)]
    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        swiglu::generic::forward::<Self>(gate, up)
    }

    /// Gradients of `gate` and `up` for the gradient `grad` of the result.
    #[fusion(meta = |gate, up, _| (gate.clone(), up.clone()))]
    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        swiglu::generic::backward::<Self>(gate, up, grad)
    }

    /// `-exp(a_log) * softplus(a + dt_bias)`: `a [R, HV]`, `a_log [HV]`, `dt_bias [HV]` ->
    /// `[R, HV]` in f32 (f64 if `a` is).
    #[fusion(meta = |a, _, _| meta::wide(a))]
    fn decay_gate(
        a: FloatTensor<Self>,
        a_log: FloatTensor<Self>,
        dt_bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        decay_gate::generic::forward::<Self>(a, a_log, dt_bias)
    }

    /// Gradients of `a`, `a_log` and `dt_bias`, each in its own dtype, for the gradient
    /// `grad [R, HV]` in f32 (f64 if `a` is).
    #[fusion(meta = |a, a_log, dt_bias, _| (a.clone(), a_log.clone(), dt_bias.clone()))]
    fn decay_gate_backward(
        a: FloatTensor<Self>,
        a_log: FloatTensor<Self>,
        dt_bias: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        decay_gate::generic::backward::<Self>(a, a_log, dt_bias, grad)
    }

    /// `x * rsqrt(sum(x^2) + epsilon)` for the rows of `x [R, D]`: `[R, D]` in the dtype of `x`.
    #[fusion(dtype = x, shape = x)]
    fn l2_norm(x: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self> {
        l2_norm::generic::forward::<Self>(x, epsilon)
    }

    /// Gradient of `x` for the gradient `grad [R, D]` of the result; zero for rows of zeros.
    #[fusion(dtype = x, shape = x)]
    fn l2_norm_backward(
        x: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        l2_norm::generic::backward::<Self>(x, grad, epsilon)
    }

    /// `weight * cast(x * rsqrt(mean(x^2) + epsilon)) * silu(gate)`: `x [R, D]`, `gate [R, D]` of
    /// one dtype, `weight [D]` -> `[R, D]` in that dtype.
    #[fusion(dtype = x, shape = x)]
    fn gated_rms_norm(
        x: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        gated_rms_norm::generic::forward::<Self>(x, gate, weight, epsilon)
    }

    /// Gradients of `x`, `gate` and `weight` for the gradient `grad [R, D]` of the result.
    #[fusion(meta = |x, gate, weight, _, _| (x.clone(), gate.clone(), weight.clone()))]
    fn gated_rms_norm_backward(
        x: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        gated_rms_norm::generic::backward::<Self>(x, gate, weight, grad, epsilon)
    }
}

/// Shapes and dtypes of the outputs, for Fusion.
#[cfg(feature = "fusion")]
mod meta {
    use std::sync::Arc;

    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    use burn_tree_kit::dtype::at_least_f32;

    use crate::gather_rows::GatherPlan;
    use crate::linear::InputGradientTermMetadata;
    use crate::lm_head::{
        EntropyOutput, HeadGradients, LmHeadInputsMetadata, LmHeadOutputGradientsMetadata,
        LmHeadPlan,
    };
    use crate::rms_norm::NormScale;

    pub(super) fn lm_head_log_probs(
        inputs: &LmHeadInputsMetadata,
        plan: &Arc<LmHeadPlan>,
        _entropy: &EntropyOutput,
    ) -> (TensorSpec, TensorSpec, TensorSpec) {
        let product = plan.product_dtype(inputs.hidden.dtype, inputs.head_weight.dtype);
        let dtype = at_least_f32(product.into()).into();
        let vector = |length: usize| TensorSpec::new(Shape::new([length]), dtype);
        (
            vector(plan.occurrences()),
            vector(plan.projected_rows()),
            vector(plan.occurrences()),
        )
    }

    pub(super) fn lm_head_log_probs_backward(
        inputs: &LmHeadInputsMetadata,
        _outputs: &LmHeadOutputGradientsMetadata,
        _plan: &Arc<LmHeadPlan>,
        gradients: &HeadGradients,
    ) -> (TensorSpec, TensorSpec) {
        let mut grad_head = inputs.head_weight.clone();
        if !gradients.head {
            grad_head.shape = Shape::new([1, 1]);
        }
        (inputs.hidden.clone(), grad_head)
    }

    pub(super) fn gather_rows(x: &TensorSpec, plan: &Arc<GatherPlan>) -> TensorSpec {
        let shape = Shape::new([plan.indices().len(), x.shape[1]]);
        TensorSpec::new(shape, x.dtype)
    }

    pub(super) fn gather_rows_backward(grad: &TensorSpec, plan: &Arc<GatherPlan>) -> TensorSpec {
        let shape = Shape::new([plan.rows(), grad.shape[1]]);
        TensorSpec::new(shape, grad.dtype)
    }

    pub(super) fn linear(x: &TensorSpec, weight: &TensorSpec) -> TensorSpec {
        TensorSpec::new(Shape::new([x.shape[0], weight.shape[1]]), x.dtype)
    }

    pub(super) fn linear_grad_input(term: &InputGradientTermMetadata) -> TensorSpec {
        let shape = Shape::new([term.grad.shape[0], term.weight.shape[0]]);
        TensorSpec::new(shape, term.grad.dtype)
    }

    pub(super) fn linear_grad_weight(x: &TensorSpec, grad: &TensorSpec) -> TensorSpec {
        TensorSpec::new(Shape::new([x.shape[1], grad.shape[1]]), x.dtype)
    }

    pub(super) fn grouped_linear(
        x: &TensorSpec,
        weight: &TensorSpec,
        _group_sizes: &Arc<Vec<usize>>,
    ) -> TensorSpec {
        TensorSpec::new(Shape::new([x.shape[0], weight.shape[2]]), x.dtype)
    }

    pub(super) fn rms_norm(
        x: &TensorSpec,
        _weight: &TensorSpec,
        _epsilon: &f64,
        _scale: &NormScale,
    ) -> (TensorSpec, TensorSpec) {
        let shape = Shape::new([x.shape[0], 1]);
        (
            x.clone(),
            TensorSpec::new(shape, at_least_f32(x.dtype).into()),
        )
    }

    /// The same shape in at least f32.
    pub(super) fn wide(tensor: &TensorSpec) -> TensorSpec {
        TensorSpec::new(tensor.shape.clone(), at_least_f32(tensor.dtype).into())
    }
}
