//! Gradients by hand: the forward pass keeps its inputs, the states of all slots and the inverses.
//!
//! Two outputs are differentiable, of which Burn's graph knows nothing. The output is the node of
//! the operation; the states are a child of it, so that its step runs first: it leaves the
//! gradient of the states where the operation's step finds it.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::{AutodiffBackend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{Shape, Slice};
use burn_autodiff::{
    Autodiff, NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn_tree_kit::autodiff::Tracked;

use super::settings::GatedDeltaRuleSettings;
use super::tensors::{GatedDeltaRuleInputs, GatedDeltaRuleSaved};
use crate::ops::TreeSsmOps;
use crate::recurrence::TreeRecurrence;

/// The gradient of the states after the requested rows, once known.
type StatesGradient<B> = Arc<Mutex<Option<FloatTensor<B>>>>;

#[derive(Debug)]
struct GatedDeltaRule;

#[derive(Clone, Debug)]
struct State<B: TreeSsmOps> {
    inputs: [NodeId; 6],
    saved: GatedDeltaRuleSaved<B>,
    grad_states: StatesGradient<B>,
    recurrence: TreeRecurrence,
    settings: GatedDeltaRuleSettings,
}

impl<B: TreeSsmOps> Backward<B, 6> for GatedDeltaRule {
    type State = State<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 6>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let State {
            inputs,
            saved,
            grad_states,
            recurrence,
            settings,
        } = ops.state;
        let grad_output = grads.consume::<B>(&ops.node);
        let grad_states = take(&grad_states).unwrap_or_else(|| {
            let mut shape = saved.states.shape();
            shape[0] = recurrence.requested_rows().len().max(1);
            let dtype = saved.states.dtype().into();
            B::float_zeros(shape, &saved.states.device(), dtype)
        });
        let inputs = inputs.map(|node| checkpointer.retrieve_node_output(node));
        let gradients = B::gated_delta_rule_backward(
            GatedDeltaRuleInputs::from_array(inputs),
            saved,
            grad_output,
            grad_states,
            recurrence,
            settings,
        );
        for (parent, gradient) in ops.parents.into_iter().zip(gradients.into_array()) {
            if let Some(parent) = parent {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// The states as a child of the output.
#[derive(Debug)]
struct States;

#[derive(Clone, Debug)]
struct StatesState<B: TreeSsmOps> {
    grad_states: StatesGradient<B>,
    requested: usize,
    /// Of the output, whose own gradient may be zero.
    output: (Shape, burn::tensor::DType),
}

impl<B: TreeSsmOps> Backward<B, 1> for States {
    type State = StatesState<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        let device = grad.device();
        let mut slices = grad
            .shape()
            .iter()
            .map(|&size| Slice::from(0..size))
            .collect::<Vec<_>>();
        slices[0] = Slice::from(0..ops.state.requested);
        *lock(&ops.state.grad_states) = Some(B::float_slice(grad, &slices));
        // The operation's step runs once its own gradient is there.
        let [Some(output)] = ops.parents else {
            return;
        };
        let (shape, dtype) = ops.state.output;
        grads.register::<B>(output.id, B::float_zeros(shape, &device, dtype.into()));
    }
}

fn lock<T>(cell: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take<T>(cell: &Mutex<Option<T>>) -> Option<T> {
    lock(cell).take()
}

/// The forward pass on an autodiff backend.
pub(crate) fn forward<B: TreeSsmOps, C: CheckpointStrategy>(
    inputs: GatedDeltaRuleInputs<Autodiff<B, C>>,
    recurrence: TreeRecurrence,
    settings: GatedDeltaRuleSettings,
) -> (Tracked<B, C>, GatedDeltaRuleSaved<Autodiff<B, C>>) {
    let inputs = inputs.into_array();
    let primitives = inputs.each_ref().map(|tensor| tensor.primitive().clone());
    let (output, saved) = B::gated_delta_rule(
        GatedDeltaRuleInputs::from_array(primitives),
        recurrence.clone(),
        settings,
    );
    let requested = recurrence.requested_rows().len();
    let grad_states = StatesGradient::<B>::default();
    let output = match GatedDeltaRule
        .prepare::<C>(inputs.each_ref().map(|tensor| tensor.node()))
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let state = State {
                inputs: inputs.each_ref().map(|tensor| prep.checkpoint(tensor)),
                saved: saved.clone(),
                grad_states: grad_states.clone(),
                recurrence,
                settings,
            };
            prep.finish(state, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    };
    let states = match requested {
        0 => Autodiff::<B, C>::from_inner(saved.states),
        requested => tracked_states::<B, C>(&output, saved.states, requested, grad_states),
    };
    let inverse = Autodiff::<B, C>::from_inner(saved.inverse);
    (output, GatedDeltaRuleSaved { states, inverse })
}

/// The states as a child of the output.
fn tracked_states<B: TreeSsmOps, C: CheckpointStrategy>(
    output: &Tracked<B, C>,
    states: FloatTensor<B>,
    requested: usize,
    grad_states: StatesGradient<B>,
) -> Tracked<B, C> {
    match States
        .prepare::<C>([output.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => {
            let state = StatesState {
                grad_states,
                requested,
                output: (output.primitive().shape(), output.primitive().dtype()),
            };
            prep.finish(state, states)
        }
        OpsKind::UnTracked(prep) => prep.finish(states),
    }
}
