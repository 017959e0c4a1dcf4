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
struct GatedRmsNormBackward;

impl<B: TreeNnOps> Backward<B, 3> for GatedRmsNormBackward {
    type State = ([NodeId; 3], f64);

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        backward::<B, _, 3>(ops, grads, |grad, (inputs, epsilon)| {
            let [x, gate, weight] =
                inputs.map(|node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node));
            B::gated_rms_norm_backward(x, gate, weight, grad, epsilon).into()
        });
    }
}

/// The forward pass on an autodiff backend.
pub(crate) fn forward<B: TreeNnOps, C: CheckpointStrategy>(
    x: Tracked<B, C>,
    gate: Tracked<B, C>,
    weight: Tracked<B, C>,
    epsilon: f64,
) -> Tracked<B, C> {
    let y = B::gated_rms_norm(
        x.primitive().clone(),
        gate.primitive().clone(),
        weight.primitive().clone(),
        epsilon,
    );
    match GatedRmsNormBackward
        .prepare::<C>([x.node(), gate.node(), weight.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let inputs = [&x, &gate, &weight].map(|input| prep.checkpoint(input));
            prep.finish((inputs, epsilon), y)
        }
        OpsKind::UnTracked(prep) => prep.finish(y),
    }
}
