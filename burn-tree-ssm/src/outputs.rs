//! Operations with several differentiable outputs. burn-autodiff has nodes with one output only:
//! here the operation is a node of its own, and each output a child of it that hands over its
//! gradient.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::{AutodiffBackend, Backend, tensor::FloatTensor};
use burn_autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

use crate::primitive::Tracked;

/// The gradients of the `N` outputs of an operation, as far as they have arrived.
#[derive(Clone, Debug)]
pub(crate) struct OutputGradients<B: Backend, const N: usize>(Arc<Mutex<Arrived<B, N>>>);

type Arrived<B, const N: usize> = [Option<FloatTensor<B>>; N];

impl<B: Backend, const N: usize> OutputGradients<B, N> {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new([const { None }; N])))
    }

    /// Takes the gradients out, in the backward pass of the operation itself: it runs after those
    /// of all its outputs. `None` for outputs that the loss does not depend on.
    pub(crate) fn take(&self) -> Arrived<B, N> {
        let mut arrived = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *arrived, [const { None }; N])
    }

    /// Puts in the gradient of one output; whether it is the first.
    fn put(&self, output: usize, gradient: FloatTensor<B>) -> bool {
        let mut arrived = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = arrived.iter().all(Option::is_none);
        arrived[output] = Some(gradient);
        first
    }

    /// The outputs as children of `operation`, the node of an operation whose state holds these
    /// gradients.
    pub(crate) fn outputs<C: CheckpointStrategy>(
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
            // The operation consumes some gradient of its own before it takes those of its
            // outputs; nobody reads it.
            grads.register::<B>(operation.id, gradient);
        }
    }
}
