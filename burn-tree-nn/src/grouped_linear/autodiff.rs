//! Gradient of the grouped product.

use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn_autodiff::{
    NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

use crate::ops::TreeNnOps;
use burn_tree_kit::autodiff::{Tracked, backward};

#[derive(Debug)]
struct GroupedLinearBackward;

impl<B: TreeNnOps> Backward<B, 2> for GroupedLinearBackward {
    type State = (NodeId, NodeId, Arc<Vec<usize>>);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        backward::<B, _, 2>(ops, grads, |grad, (x, weight, group_sizes)| {
            let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
            let weight = checkpointer.retrieve_node_output::<FloatTensor<B>>(weight);
            B::grouped_linear_backward(x, weight, grad, group_sizes).into()
        });
    }
}

/// The forward pass on an autodiff backend.
pub(crate) fn forward<B: TreeNnOps, C: CheckpointStrategy>(
    x: Tracked<B, C>,
    weight: Tracked<B, C>,
    group_sizes: Arc<Vec<usize>>,
) -> Tracked<B, C> {
    let output = B::grouped_linear(
        x.primitive().clone(),
        weight.primitive().clone(),
        group_sizes.clone(),
    );
    match GroupedLinearBackward
        .prepare::<C>([x.node(), weight.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let state = (prep.checkpoint(&x), prep.checkpoint(&weight), group_sizes);
            prep.finish(state, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}
