//! Gradient of the gated activation.

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
struct SwigluBackward;

impl<B: TreeNnOps> Backward<B, 2> for SwigluBackward {
    type State = (NodeId, NodeId);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        backward::<B, _, 2>(ops, grads, |grad, (gate, up)| {
            let gate = checkpointer.retrieve_node_output::<FloatTensor<B>>(gate);
            let up = checkpointer.retrieve_node_output::<FloatTensor<B>>(up);
            B::swiglu_backward(gate, up, grad).into()
        });
    }
}

/// The forward pass on an autodiff backend.
pub(crate) fn forward<B: TreeNnOps, C: CheckpointStrategy>(
    gate: Tracked<B, C>,
    up: Tracked<B, C>,
) -> Tracked<B, C> {
    let output = B::swiglu(gate.primitive().clone(), up.primitive().clone());
    match SwigluBackward
        .prepare::<C>([gate.node(), up.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let state = (prep.checkpoint(&gate), prep.checkpoint(&up));
            prep.finish(state, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}
