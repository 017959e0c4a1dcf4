//! Gradient of the norm.

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
struct L2NormBackward;

impl<B: TreeNnOps> Backward<B, 1> for L2NormBackward {
    type State = (NodeId, f64);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        backward::<B, _, 1>(ops, grads, |grad, (x, epsilon)| {
            let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
            [B::l2_norm_backward(x, grad, epsilon)]
        });
    }
}

/// The forward pass on an autodiff backend.
pub(crate) fn forward<B: TreeNnOps, C: CheckpointStrategy>(
    x: Tracked<B, C>,
    epsilon: f64,
) -> Tracked<B, C> {
    let y = B::l2_norm(x.primitive().clone(), epsilon);
    match L2NormBackward
        .prepare::<C>([x.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let state = (prep.checkpoint(&x), epsilon);
            prep.finish(state, y)
        }
        OpsKind::UnTracked(prep) => prep.finish(y),
    }
}
