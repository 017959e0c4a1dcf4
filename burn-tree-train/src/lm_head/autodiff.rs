//! Gradient of the log-probabilities.

use std::sync::Arc;

use burn::backend::{
    AutodiffBackend,
    tensor::{FloatTensor, IntTensor},
};
use burn_autodiff::{
    Autodiff, NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

use super::LmHeadPlan;
use crate::TreeTrainOps;
use crate::primitive::{Tracked, backward};

#[derive(Debug)]
struct LmHeadBackward;

#[derive(Clone, Debug)]
struct State<F, I> {
    hidden: NodeId,
    head_weight: NodeId,
    log_sum_exp: F,
    targets: I,
    plan: Arc<LmHeadPlan>,
}

impl<B: TreeTrainOps> Backward<B, 2> for LmHeadBackward {
    type State = State<FloatTensor<B>, IntTensor<B>>;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let head_gradient = ops.parents[1].is_some();
        backward::<B, _, 2>(ops, grads, |grad, state| {
            let hidden = checkpointer.retrieve_node_output::<FloatTensor<B>>(state.hidden);
            let head_weight =
                checkpointer.retrieve_node_output::<FloatTensor<B>>(state.head_weight);
            B::lm_head_log_probs_backward(
                hidden,
                head_weight,
                state.targets,
                state.log_sum_exp,
                grad,
                state.plan,
                head_gradient,
            )
            .into()
        });
    }
}

/// The forward pass on an autodiff backend.
pub(crate) fn forward<B: TreeTrainOps, C: CheckpointStrategy>(
    hidden: Tracked<B, C>,
    head_weight: Tracked<B, C>,
    targets: IntTensor<B>,
    plan: Arc<LmHeadPlan>,
    entropy: bool,
) -> (Tracked<B, C>, Tracked<B, C>, Tracked<B, C>) {
    let (log_probs, log_sum_exp, entropy) = B::lm_head_log_probs(
        hidden.primitive().clone(),
        head_weight.primitive().clone(),
        targets.clone(),
        plan.clone(),
        entropy,
    );
    let log_probs = match LmHeadBackward
        .prepare::<C>([hidden.node(), head_weight.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let state = State {
                hidden: prep.checkpoint(&hidden),
                head_weight: prep.checkpoint(&head_weight),
                log_sum_exp: log_sum_exp.clone(),
                targets,
                plan,
            };
            prep.finish(state, log_probs)
        }
        OpsKind::UnTracked(prep) => prep.finish(log_probs),
    };
    (
        log_probs,
        Autodiff::<B, C>::from_inner(log_sum_exp),
        Autodiff::<B, C>::from_inner(entropy),
    )
}
