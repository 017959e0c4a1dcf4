//! Gradient of the convolution.

use std::sync::Arc;

use burn::backend::{AutodiffBackend, TensorMetadata, tensor::FloatTensor};
use burn_autodiff::{
    Autodiff, NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

use super::ConvolutionSettings;
use crate::{ConvolutionPlan, TreeSsmOps};
use burn_tree_kit::autodiff::OutputGradients;
use burn_tree_kit::autodiff::{Tracked, backward};

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
            let [x, weight, tails] = [state.x, state.weight, state.initial_tails]
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
            let (first, second, third) = (output(first, 0), output(second, 1), output(third, 2));
            let outgoing = outgoing.unwrap_or_else(|| match plan.requested_sources().len() {
                0 => tails.clone(),
                rows => zeros(rows, channels),
            });
            let gradients = B::causal_conv1d_backward(
                x.clone(),
                weight,
                tails,
                first,
                second,
                third,
                outgoing,
                plan.clone(),
                settings,
            );
            gradients.into()
        });
    }
}

/// The forward pass on an autodiff backend.
#[allow(clippy::type_complexity)]
pub(crate) fn forward<B: TreeSsmOps, C: CheckpointStrategy>(
    x: Tracked<B, C>,
    weight: Tracked<B, C>,
    initial_tails: Tracked<B, C>,
    plan: Arc<ConvolutionPlan>,
    settings: ConvolutionSettings,
) -> (Tracked<B, C>, Tracked<B, C>, Tracked<B, C>, Tracked<B, C>) {
    let outputs: [FloatTensor<B>; 4] = B::causal_conv1d(
        x.primitive().clone(),
        weight.primitive().clone(),
        initial_tails.primitive().clone(),
        plan.clone(),
        settings,
    )
    .into();
    let outputs = match CausalConv1dBackward
        .prepare::<C>([x.node(), weight.node(), initial_tails.node()])
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
    outputs.into()
}
