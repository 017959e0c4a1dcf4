//! Autodiff: forward passes that record hand-written gradients.

use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use crate::gather_rows::{self, GatherPlan};
use crate::lm_head::{self, EntropyOutput, LmHeadInputs, LmHeadPlan};
use crate::ops::TreeNnOps;
use crate::rms_norm::{self, NormScale};
use crate::{decay_gate, gated_rms_norm, grouped_linear, l2_norm, linear, swiglu};

impl<B: TreeNnOps, C: CheckpointStrategy> TreeNnOps for Autodiff<B, C> {
    fn lm_head_log_probs(
        inputs: LmHeadInputs<Self>,
        plan: Arc<LmHeadPlan>,
        entropy: EntropyOutput,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        lm_head::autodiff_forward::<B, C>(inputs, plan, entropy)
    }

    fn gather_rows(x: FloatTensor<Self>, plan: Arc<GatherPlan>) -> FloatTensor<Self> {
        gather_rows::autodiff_forward::<B, C>(x, plan)
    }

    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
        scale: NormScale,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        rms_norm::autodiff_forward::<B, C>(x, weight, epsilon, scale)
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        swiglu::autodiff_forward::<B, C>(gate, up)
    }

    fn linear_output(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        linear::autodiff_linear::<B, C>(x, weight)
    }

    fn linear_pair(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        linear::linear_pair::<B, C>(x, [first, second])
    }

    fn linear_triple(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        linear::linear_triple::<B, C>(x, [first, second, third])
    }

    fn grouped_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        group_sizes: Arc<Vec<usize>>,
    ) -> FloatTensor<Self> {
        grouped_linear::autodiff_forward::<B, C>(x, weight, group_sizes)
    }

    fn decay_gate(
        a: FloatTensor<Self>,
        a_log: FloatTensor<Self>,
        dt_bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        decay_gate::autodiff_forward::<B, C>(a, a_log, dt_bias)
    }

    fn l2_norm(x: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self> {
        l2_norm::autodiff_forward::<B, C>(x, epsilon)
    }

    fn gated_rms_norm(
        x: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        gated_rms_norm::autodiff_forward::<B, C>(x, gate, weight, epsilon)
    }
}
