//! Gradient by hand: the rotation by the negative angle.

use burn::backend::tensor::IntTensor;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn_tree_kit::autodiff::Tracked;

use super::settings::RopeSettings;
use crate::ops::TreeAttentionOps;

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

/// Rope, differentiable in `x`.
pub(crate) fn rope<B: TreeAttentionOps, C: CheckpointStrategy>(
    x: Tracked<B, C>,
    position_ids: IntTensor<B>,
    settings: RopeSettings,
) -> Tracked<B, C> {
    let (x, node) = x.into_parts();
    let output = B::rope(x, position_ids.clone(), settings);
    match Rope.prepare::<C>([node]).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish((position_ids, settings), output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}
