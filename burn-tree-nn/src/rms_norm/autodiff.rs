//! Gradient of the norm.

use burn::backend::{AutodiffBackend, tensor::FloatTensor};
use burn_autodiff::{
    Autodiff, NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

use super::scale::NormScale;
use crate::ops::TreeNnOps;
use burn_tree_kit::autodiff::{Tracked, backward};

#[derive(Debug)]
struct RmsNormBackward;

impl<B: TreeNnOps> Backward<B, 2> for RmsNormBackward {
    type State = (NodeId, NodeId, FloatTensor<B>, NormScale);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        backward::<B, _, 2>(ops, grads, |grad, (x, weight, inverse_rms, scale)| {
            let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
            let weight = checkpointer.retrieve_node_output::<FloatTensor<B>>(weight);
            B::rms_norm_backward(x, weight, inverse_rms, grad, scale).into()
        });
    }
}

/// The forward pass on an autodiff backend.
pub(crate) fn forward<B: TreeNnOps, C: CheckpointStrategy>(
    x: Tracked<B, C>,
    weight: Tracked<B, C>,
    epsilon: f64,
    scale: NormScale,
) -> (Tracked<B, C>, Tracked<B, C>) {
    let (y, inverse_rms) = B::rms_norm(
        x.primitive().clone(),
        weight.primitive().clone(),
        epsilon,
        scale,
    );
    let y = match RmsNormBackward
        .prepare::<C>([x.node(), weight.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let state = (
                prep.checkpoint(&x),
                prep.checkpoint(&weight),
                inverse_rms.clone(),
                scale,
            );
            prep.finish(state, y)
        }
        OpsKind::UnTracked(prep) => prep.finish(y),
    };
    (y, Autodiff::<B, C>::from_inner(inverse_rms))
}
