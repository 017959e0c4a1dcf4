//! Gradients by hand: the forward pass keeps inputs, output and log-sum-exp.

use std::sync::Arc;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{AutodiffBackend, Backend, TensorMetadata};
use burn::tensor::Slice;
use burn_autodiff::Autodiff;
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind, unary};

use crate::TreeAttentionOps;
use crate::ops::{AttentionSettings, RopeSettings, join};
use crate::visibility::Visibility;

#[derive(Debug)]
struct TreeAttention;

#[derive(Clone, Debug)]
struct TreeAttentionState<B: Backend, const N: usize> {
    inputs: [NodeId; N],
    output: FloatTensor<B>,
    log_sum_exp: FloatTensor<B>,
    /// Starts and ends of keys' intervals, positions of keys and queries.
    mask: [IntTensor<B>; 4],
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
        let [key_start, key_end, key_position, query_position] = self.mask;
        let gradients = B::tree_attention_backward(
            grad_output,
            query,
            key,
            value,
            self.output,
            self.log_sum_exp,
            key_start,
            key_end,
            key_position,
            query_position,
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

/// With past: query, past key, key, past value, value. Joined anew, so that nothing joined waits for
/// the backward pass.
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

type Tracked<B, C> = FloatTensor<Autodiff<B, C>>;

/// Attention of a query to all keys and values, differentiable in the `inputs` that these are made of.
fn attend<B: TreeAttentionOps, C: CheckpointStrategy, const N: usize>(
    inputs: [Tracked<B, C>; N],
    [query, key, value]: [FloatTensor<B>; 3],
    mask: [IntTensor<B>; 4],
    visibility: Arc<Visibility>,
    settings: AttentionSettings,
) -> (Tracked<B, C>, Tracked<B, C>)
where
    TreeAttention: Backward<B, N, State = TreeAttentionState<B, N>>,
{
    let [key_start, key_end, key_position, query_position] = mask.clone();
    let (output, log_sum_exp) = B::tree_attention(
        query,
        key,
        value,
        key_start,
        key_end,
        key_position,
        query_position,
        visibility.clone(),
        settings,
    );
    let nodes = inputs.each_ref().map(|input| input.node());
    let output = match TreeAttention.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let state = TreeAttentionState {
                inputs: inputs.each_ref().map(|input| prep.checkpoint(input)),
                output: output.clone(),
                log_sum_exp: log_sum_exp.clone(),
                mask,
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

#[derive(Debug)]
struct Rope;

impl<B: TreeAttentionOps> Backward<B, 1> for Rope {
    type State = (IntTensor<B>, RopeSettings);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let (position_ids, settings) = ops.state;
        let settings = RopeSettings {
            direction: settings.direction.reversed(),
            ..settings
        };
        unary::<B, _>(ops.parents, ops.node, grads, |gradient| {
            B::rope(gradient, position_ids, settings)
        });
    }
}

impl<B: TreeAttentionOps, C: CheckpointStrategy> TreeAttentionOps for Autodiff<B, C> {
    fn tree_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        key_start: IntTensor<Self>,
        key_end: IntTensor<Self>,
        key_position: IntTensor<Self>,
        query_position: IntTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [query, key, value];
        let joined = inputs.each_ref().map(|input| input.primitive().clone());
        let mask = [key_start, key_end, key_position, query_position];
        attend::<B, C, 3>(inputs, joined, mask, visibility, settings)
    }

    fn tree_attention_with_past(
        query: FloatTensor<Self>,
        past_key: FloatTensor<Self>,
        past_value: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        key_start: IntTensor<Self>,
        key_end: IntTensor<Self>,
        key_position: IntTensor<Self>,
        query_position: IntTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [query, past_key, key, past_value, value];
        let [query, past_key, key, past_value, value] =
            inputs.each_ref().map(|input| input.primitive().clone());
        let joined = [
            query,
            join::<B>(past_key, key),
            join::<B>(past_value, value),
        ];
        let mask = [key_start, key_end, key_position, query_position];
        attend::<B, C, 5>(inputs, joined, mask, visibility, settings)
    }

    fn rope(
        x: FloatTensor<Self>,
        position_ids: IntTensor<Self>,
        settings: RopeSettings,
    ) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        let output = B::rope(x, position_ids.clone(), settings);
        match Rope.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((position_ids, settings), output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}
