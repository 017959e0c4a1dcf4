//! Gradients by hand: the forward pass keeps inputs, output and log-sum-exp.

use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, Backend, TensorMetadata};
use burn::tensor::Slice;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_autodiff::{Autodiff, NodeId};
use burn_tree_kit::autodiff::Tracked;

use super::options::AttentionSettings;
use crate::mask::Visibility;
use crate::ops::TreeAttentionOps;
use crate::primitive::join;

#[derive(Debug)]
pub(crate) struct TreeAttention;

#[derive(Clone, Debug)]
pub(crate) struct TreeAttentionState<B: Backend, const N: usize> {
    inputs: [NodeId; N],
    output: FloatTensor<B>,
    log_sum_exp: FloatTensor<B>,
    visibility: Arc<Visibility>,
    settings: AttentionSettings,
}

impl<B: TreeAttentionOps, const N: usize> TreeAttentionState<B, N> {
    /// Gradients of query, and of all keys and values.
    fn gradients(
        self,
        grad_output: FloatTensor<B>,
        [query, key, value]: [FloatTensor<B>; 3],
    ) -> [FloatTensor<B>; 3] {
        let gradients = B::tree_attention_backward(
            grad_output,
            query,
            key,
            value,
            self.output,
            self.log_sum_exp,
            self.visibility,
            self.settings,
        );
        gradients.into()
    }
}

impl<B: TreeAttentionOps> Backward<B, 3> for TreeAttention {
    type State = TreeAttentionState<B, 3>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let inputs = ops.state.inputs;
        let inputs = inputs.map(|node| checkpointer.retrieve_node_output(node));
        let gradients = ops.state.gradients(grads.consume::<B>(&ops.node), inputs);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

/// With past: query, past key, key, past value, value. The backward pass joins them anew, so that
/// the graph keeps nothing joined.
impl<B: TreeAttentionOps> Backward<B, 5> for TreeAttention {
    type State = TreeAttentionState<B, 5>;

    fn backward(
        self,
        ops: Ops<Self::State, 5>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let inputs = ops.state.inputs;
        let [query, past_key, key, past_value, value] =
            inputs.map(|node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node));
        let [past, own] = [&past_key, &key].map(|key| key.shape()[2]);
        let joined = [
            query,
            join::<B>(past_key, key),
            join::<B>(past_value, value),
        ];
        let [query, key, value] = ops.state.gradients(grads.consume::<B>(&ops.node), joined);

        let [query_parent, parents @ ..] = ops.parents;
        if let Some(node) = query_parent {
            grads.register::<B>(node.id, query);
        }
        let parts = [
            (&key, 0..past),
            (&key, past..past + own),
            (&value, 0..past),
            (&value, past..past + own),
        ];
        for (parent, (gradient, rows)) in parents.into_iter().zip(parts) {
            if let Some(node) = parent {
                let [batch, heads, _, width] = gradient.shape().dims();
                let slices = [0..batch, 0..heads, rows, 0..width].map(Slice::from);
                grads.register::<B>(node.id, B::float_slice(gradient.clone(), &slices));
            }
        }
    }
}

/// Attention of a query to all keys and values (`joined`), differentiable in the `inputs` that these
/// are made of.
pub(crate) fn attend<B: TreeAttentionOps, C: CheckpointStrategy, const N: usize>(
    inputs: [Tracked<B, C>; N],
    [query, key, value]: [FloatTensor<B>; 3],
    visibility: Arc<Visibility>,
    settings: AttentionSettings,
) -> (Tracked<B, C>, Tracked<B, C>)
where
    TreeAttention: Backward<B, N, State = TreeAttentionState<B, N>>,
{
    let (output, log_sum_exp) = B::tree_attention(query, key, value, visibility.clone(), settings);
    let nodes = inputs.each_ref().map(|input| input.node());
    let output = match TreeAttention.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let state = TreeAttentionState {
                inputs: inputs.each_ref().map(|input| prep.checkpoint(input)),
                output: output.clone(),
                log_sum_exp: log_sum_exp.clone(),
                visibility,
                settings,
            };
            prep.finish(state, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    };
    // Not differentiable: a constant to autodiff.
    (output, Autodiff::<B, C>::from_inner(log_sum_exp))
}
