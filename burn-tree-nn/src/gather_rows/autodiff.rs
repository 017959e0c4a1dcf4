//! Gradient of the gather.

use std::sync::Arc;

use burn_autodiff::{
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind, unary},
};

use super::plan::GatherPlan;
use crate::ops::TreeNnOps;
use burn_tree_kit::autodiff::Tracked;

#[derive(Debug)]
struct GatherRowsBackward;

impl<B: TreeNnOps> Backward<B, 1> for GatherRowsBackward {
    type State = Arc<GatherPlan>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            B::gather_rows_backward(grad, ops.state)
        });
    }
}

/// The forward pass on an autodiff backend.
pub(crate) fn forward<B: TreeNnOps, C: CheckpointStrategy>(
    x: Tracked<B, C>,
    plan: Arc<GatherPlan>,
) -> Tracked<B, C> {
    let (x, node) = x.into_parts();
    let output = B::gather_rows(x, plan.clone());
    match GatherRowsBackward
        .prepare::<C>([node])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(plan, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}
