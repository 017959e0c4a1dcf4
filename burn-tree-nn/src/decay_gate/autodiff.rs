//! Gradient of the gate.

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
struct DecayGateBackward;

impl<B: TreeNnOps> Backward<B, 3> for DecayGateBackward {
    type State = [NodeId; 3];

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        backward::<B, _, 3>(ops, grads, |grad, inputs| {
            let [a, a_log, dt_bias] =
                inputs.map(|node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node));
            B::decay_gate_backward(a, a_log, dt_bias, grad).into()
        });
    }
}

/// The forward pass on an autodiff backend.
pub(crate) fn forward<B: TreeNnOps, C: CheckpointStrategy>(
    a: Tracked<B, C>,
    a_log: Tracked<B, C>,
    dt_bias: Tracked<B, C>,
) -> Tracked<B, C> {
    let gate = B::decay_gate(
        a.primitive().clone(),
        a_log.primitive().clone(),
        dt_bias.primitive().clone(),
    );
    match DecayGateBackward
        .prepare::<C>([a.node(), a_log.node(), dt_bias.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let state = [&a, &a_log, &dt_bias].map(|input| prep.checkpoint(input));
            prep.finish(state, gate)
        }
        OpsKind::UnTracked(prep) => prep.finish(gate),
    }
}
