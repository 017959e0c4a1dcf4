//! What the operations share about backend primitives.

use burn::backend::{
    Backend,
    tensor::{Device, FloatTensor, IntTensor},
};
use burn::tensor::TensorData;
use burn_autodiff::{Autodiff, grads::Gradients, ops::Ops};

/// A float tensor of the autodiff backend around `B`.
pub(crate) type Tracked<B, C> = burn::backend::tensor::FloatTensor<Autodiff<B, C>>;

/// Host indices as an i32 tensor.
pub(crate) fn int_tensor<B: Backend>(values: &[u32], device: &Device<B>) -> IntTensor<B> {
    let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
    let length = values.len();
    B::int_from_data(TensorData::new(values, [length]), device)
}

/// Runs the backward pass of an operation: `gradients` makes those of all parents from the
/// gradient of the output and the state; each is added to its parent if that one is tracked.
pub(crate) fn backward<B: Backend, S, const N: usize>(
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
