//! Gradient of the log-probabilities.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::{
    AutodiffBackend,
    ops::FloatTensorOps,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::Slice;
use burn_autodiff::{
    Autodiff, NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

use super::options::EntropyOutput;
use super::plan::{HeadGradients, LmHeadPlan};
use super::tensors::{LmHeadInputs, LmHeadOutputGradients};
use crate::ops::TreeNnOps;
use burn_tree_kit::autodiff::{Tracked, backward};

#[derive(Debug)]
struct LmHeadBackward;

#[derive(Clone, Debug)]
struct State<F, I> {
    hidden: NodeId,
    head_weight: NodeId,
    log_sum_exp: F,
    /// The entropies, if the output contains them after the log-probabilities.
    entropy: Option<F>,
    targets: I,
    plan: Arc<LmHeadPlan>,
}

impl<B: TreeNnOps> Backward<B, 2> for LmHeadBackward {
    type State = State<FloatTensor<B>, IntTensor<B>>;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let head = ops.parents[1].is_some();
        backward::<B, _, 2>(ops, grads, |grad, state| {
            let inputs = LmHeadInputs {
                hidden: checkpointer.retrieve_node_output::<FloatTensor<B>>(state.hidden),
                head_weight: checkpointer.retrieve_node_output::<FloatTensor<B>>(state.head_weight),
                targets: state.targets,
            };
            let gradients = HeadGradients {
                head,
                entropy: state.entropy.is_some(),
            };
            let count = state.plan.occurrences();
            let (entropy, grad, grad_entropy) = match state.entropy {
                Some(entropy) => {
                    let half =
                        |range: Range<usize>| B::float_slice(grad.clone(), &[Slice::from(range)]);
                    (entropy, half(0..count), half(count..2 * count))
                }
                // The backward pass does not read it.
                None => (grad.clone(), grad.clone(), grad),
            };
            let outputs = LmHeadOutputGradients {
                log_sum_exp: state.log_sum_exp,
                entropy,
                grad,
                grad_entropy,
            };
            B::lm_head_log_probs_backward(inputs, outputs, state.plan, gradients).into()
        });
    }
}

/// The forward pass on an autodiff backend.
///
/// A node has one output. Entropies with a gradient are therefore appended to the
/// log-probabilities, and one backward pass serves both.
pub(crate) fn forward<B: TreeNnOps, C: CheckpointStrategy>(
    inputs: LmHeadInputs<Autodiff<B, C>>,
    plan: Arc<LmHeadPlan>,
    entropy: EntropyOutput,
) -> (Tracked<B, C>, Tracked<B, C>, Tracked<B, C>) {
    let LmHeadInputs {
        hidden,
        head_weight,
        targets,
    } = inputs;
    let inner = LmHeadInputs {
        hidden: hidden.primitive().clone(),
        head_weight: head_weight.primitive().clone(),
        targets: targets.clone(),
    };
    let (log_probs, log_sum_exp, entropies) = B::lm_head_log_probs(inner, plan.clone(), entropy);
    let is_tracked = entropy == EntropyOutput::Differentiable;
    let count = plan.occurrences();
    let output = match is_tracked {
        true => B::float_cat(vec![log_probs, entropies.clone()], 0),
        false => log_probs,
    };
    let output = match LmHeadBackward
        .prepare::<C>([hidden.node(), head_weight.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let state = State {
                hidden: prep.checkpoint(&hidden),
                head_weight: prep.checkpoint(&head_weight),
                log_sum_exp: log_sum_exp.clone(),
                entropy: is_tracked.then(|| entropies.clone()),
                targets,
                plan,
            };
            prep.finish(state, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    };
    let (log_probs, entropies) = match is_tracked {
        true => {
            let half = |range: Range<usize>| {
                Autodiff::<B, C>::float_slice(output.clone(), &[Slice::from(range)])
            };
            (half(0..count), half(count..2 * count))
        }
        false => (output, Autodiff::<B, C>::from_inner(entropies)),
    };
    (
        log_probs,
        Autodiff::<B, C>::from_inner(log_sum_exp),
        entropies,
    )
}
