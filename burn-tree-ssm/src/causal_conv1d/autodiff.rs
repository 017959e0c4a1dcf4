//! Gradient of the convolution.

use std::sync::Arc;

use burn::backend::{AutodiffBackend, TensorMetadata, tensor::FloatTensor};
use burn_autodiff::{
    Autodiff, NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn_tree_kit::autodiff::{OutputGradients, Tracked, backward};

use super::settings::ConvolutionSettings;
use super::tensors::{ConvolutionGradients, ConvolutionInputs, ConvolutionOutputs};
use crate::ops::TreeSsmOps;
use crate::recurrence::ConvolutionPlan;

#[derive(Debug)]
struct CausalConv1dBackward;

/// What the backward pass needs. Of the outputs it needs the shapes, in case that one of them has
/// no gradient.
#[derive(Clone, Debug)]
struct State<B: TreeSsmOps> {
    x: NodeId,
    weight: NodeId,
    initial_tails: NodeId,
    gradients: OutputGradients<B, 4>,
    plan: Arc<ConvolutionPlan>,
    settings: ConvolutionSettings,
}

impl<B: TreeSsmOps> Backward<B, 3> for CausalConv1dBackward {
    type State = State<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        backward::<B, _, 3>(ops, grads, |_, state| {
            let [x, weight, initial_tails] = [state.x, state.weight, state.initial_tails]
                .map(|node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node));
            let (plan, settings) = (state.plan, state.settings);
            let [first, second, third, outgoing] = state.gradients.take();
            let channels = x.shape()[1];
            let zeros = |rows: usize, channels: usize| {
                B::float_zeros([rows, channels].into(), &x.device(), x.dtype().into())
            };
            let parts = settings.parts;
            let output = |gradient: Option<FloatTensor<B>>, part: usize| {
                gradient.unwrap_or_else(|| match parts[part] {
                    0 => x.clone(),
                    channels => zeros(plan.rows(), channels),
                })
            };
            let grads = ConvolutionOutputs {
                first: output(first, 0),
                second: output(second, 1),
                third: output(third, 2),
                tails: outgoing.unwrap_or_else(|| match plan.requested_sources().len() {
                    0 => initial_tails.clone(),
                    rows => zeros(rows, channels),
                }),
            };
            let inputs = ConvolutionInputs {
                x: x.clone(),
                weight,
                initial_tails,
            };
            let ConvolutionGradients {
                x,
                weight,
                initial_tails,
            } = B::causal_conv1d_backward(inputs, grads, plan.clone(), settings);
            [x, weight, initial_tails]
        });
    }
}

/// The forward pass on an autodiff backend.
pub(crate) fn forward<B: TreeSsmOps, C: CheckpointStrategy>(
    inputs: ConvolutionInputs<Autodiff<B, C>>,
    plan: Arc<ConvolutionPlan>,
    settings: ConvolutionSettings,
) -> ConvolutionOutputs<Autodiff<B, C>> {
    let ConvolutionInputs {
        x,
        weight,
        initial_tails,
    } = inputs;
    let primitives = ConvolutionInputs {
        x: x.primitive().clone(),
        weight: weight.primitive().clone(),
        initial_tails: initial_tails.primitive().clone(),
    };
    let outputs = B::causal_conv1d(primitives, plan.clone(), settings);
    let outputs = [outputs.first, outputs.second, outputs.third, outputs.tails];
    let nodes = [x.node(), weight.node(), initial_tails.node()];
    let outputs: [Tracked<B, C>; 4] = match CausalConv1dBackward
        .prepare::<C>(nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let gradients = OutputGradients::new();
            let state = State {
                x: prep.checkpoint(&x),
                weight: prep.checkpoint(&weight),
                initial_tails: prep.checkpoint(&initial_tails),
                gradients: gradients.clone(),
                plan,
                settings,
            };
            let operation = prep.finish(state, outputs[0].clone());
            gradients.outputs::<C>(operation, outputs)
        }
        OpsKind::UnTracked(_) => outputs.map(Autodiff::<B, C>::from_inner),
    };
    let [first, second, third, tails] = outputs;
    ConvolutionOutputs {
        first,
        second,
        third,
        tails,
    }
}
