//! Gradients by hand: the forward pass keeps inputs, output and log-sum-exp.

use std::sync::Arc;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{AutodiffBackend, Backend};
use burn_autodiff::Autodiff;
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind, unary};

use crate::TreeAttentionOps;
use crate::ops::{AttentionSettings, RopeDirection};
use crate::visibility::Visibility;

#[derive(Debug)]
struct TreeAttention;

#[derive(Clone, Debug)]
struct TreeAttentionState<B: Backend> {
    query: NodeId,
    key: NodeId,
    value: NodeId,
    output: FloatTensor<B>,
    log_sum_exp: FloatTensor<B>,
    key_start: IntTensor<B>,
    key_end: IntTensor<B>,
    key_position: IntTensor<B>,
    query_position: IntTensor<B>,
    visibility: Arc<Visibility>,
    settings: AttentionSettings,
}

impl<B: TreeAttentionOps> Backward<B, 3> for TreeAttention {
    type State = TreeAttentionState<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let state = ops.state;
        let gradients = B::tree_attention_backward(
            grads.consume::<B>(&ops.node),
            checkpointer.retrieve_node_output(state.query),
            checkpointer.retrieve_node_output(state.key),
            checkpointer.retrieve_node_output(state.value),
            state.output,
            state.log_sum_exp,
            state.key_start,
            state.key_end,
            state.key_position,
            state.query_position,
            state.visibility,
            state.settings,
        );
        let gradients = <[_; 3]>::from(gradients);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

#[derive(Debug)]
struct Rope;

impl<B: TreeAttentionOps> Backward<B, 1> for Rope {
    type State = (IntTensor<B>, f64, usize, RopeDirection);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let (position_ids, theta, rotary_dim, direction) = ops.state;
        let opposite = match direction {
            RopeDirection::Forward => RopeDirection::Backward,
            RopeDirection::Backward => RopeDirection::Forward,
        };
        unary::<B, _>(ops.parents, ops.node, grads, |gradient| {
            B::rope(gradient, position_ids, theta, rotary_dim, opposite)
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
        let (output, log_sum_exp) = B::tree_attention(
            query.primitive().clone(),
            key.primitive().clone(),
            value.primitive().clone(),
            key_start.clone(),
            key_end.clone(),
            key_position.clone(),
            query_position.clone(),
            visibility.clone(),
            settings,
        );
        let nodes = [query.node(), key.node(), value.node()];
        let output = match TreeAttention.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = TreeAttentionState {
                    query: prep.checkpoint(&query),
                    key: prep.checkpoint(&key),
                    value: prep.checkpoint(&value),
                    output: output.clone(),
                    log_sum_exp: log_sum_exp.clone(),
                    key_start,
                    key_end,
                    key_position,
                    query_position,
                    visibility,
                    settings,
                };
                prep.finish(state, output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        };
        // Not differentiable: a constant to autodiff.
        (output, Self::from_inner(log_sum_exp))
    }

    fn rope(
        x: FloatTensor<Self>,
        position_ids: IntTensor<Self>,
        theta: f64,
        rotary_dim: usize,
        direction: RopeDirection,
    ) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        let output = B::rope(x, position_ids.clone(), theta, rotary_dim, direction);
        match Rope.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                prep.finish((position_ids, theta, rotary_dim, direction), output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}
