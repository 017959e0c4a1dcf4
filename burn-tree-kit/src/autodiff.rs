//! Hand-written backward passes as nodes of burn-autodiff.
//!
//! Such a node has one output. An operation with several differentiable outputs is therefore one
//! node for the operation and a child node for each output, which passes its gradient to the
//! operation ([`OutputGradients`]).

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::{AutodiffBackend, Backend, tensor::FloatTensor};
use burn_autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

/// A float tensor of the autodiff backend around `B`.
pub type Tracked<B, C> = FloatTensor<Autodiff<B, C>>;

/// Runs the backward pass of an operation with `N` parents. `gradients` computes the gradients of
/// all parents from that of the output and the state; each is added to its parent if the parent is
/// tracked.
pub fn backward<B: Backend, S, const N: usize>(
    ops: Ops<S, N>,
    grads: &mut Gradients,
    gradients: impl FnOnce(FloatTensor<B>, S) -> [FloatTensor<B>; N],
) where
    S: Clone + Send + std::fmt::Debug + 'static,
{
    let grad = grads.consume::<B>(&ops.node);
    for (parent, gradient) in ops.parents.into_iter().zip(gradients(grad, ops.state)) {
        if let Some(parent) = parent {
            grads.register::<B>(parent.id, gradient);
        }
    }
}

/// The gradients of the `N` outputs of an operation that a backward pass has computed so far.
#[derive(Clone, Debug)]
pub struct OutputGradients<B: Backend, const N: usize>(Arc<Mutex<Arrived<B, N>>>);

type Arrived<B, const N: usize> = [Option<FloatTensor<B>>; N];

impl<B: Backend, const N: usize> Default for OutputGradients<B, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B: Backend, const N: usize> OutputGradients<B, N> {
    /// Creates an empty set of gradients.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new([const { None }; N])))
    }

    /// Takes the gradients; `None` for outputs on which the loss does not depend. The backward pass
    /// of the operation calls it, after those of all its outputs.
    pub fn take(&self) -> Arrived<B, N> {
        let mut arrived = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *arrived, [const { None }; N])
    }

    /// Adds the gradient of output number `output`; returns whether it is the first.
    fn put(&self, output: usize, gradient: FloatTensor<B>) -> bool {
        let mut arrived = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = arrived.iter().all(Option::is_none);
        arrived[output] = Some(gradient);
        first
    }

    /// The outputs as children of `operation`, the tensor of the operation's node, whose state must
    /// contain these gradients.
    pub fn outputs<C: CheckpointStrategy>(
        &self,
        operation: Tracked<B, C>,
        outputs: [FloatTensor<B>; N],
    ) -> [Tracked<B, C>; N] {
        let mut index = 0;
        outputs.map(|output| {
            let state = (self.clone(), index);
            index += 1;
            match (OutputBackward::<N>)
                .prepare::<C>([operation.node()])
                .compute_bound()
                .stateful()
            {
                OpsKind::Tracked(prep) => prep.finish(state, output),
                OpsKind::UnTracked(_) => Autodiff::<B, C>::from_inner(output),
            }
        })
    }
}

#[derive(Debug)]
struct OutputBackward<const N: usize>;

impl<B: Backend, const N: usize> Backward<B, 1> for OutputBackward<N> {
    type State = (OutputGradients<B, N>, usize);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let (gradients, output) = ops.state;
        let first = gradients.put(output, gradient.clone());
        if let ([Some(operation)], true) = (ops.parents, first) {
            // burn-autodiff requires a gradient of the operation's own node, which is never read.
            grads.register::<B>(operation.id, gradient);
        }
    }
}
