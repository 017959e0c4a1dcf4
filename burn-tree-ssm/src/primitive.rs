//! What the operations share about backend primitives.

use burn::backend::{
    Backend, TensorMetadata,
    tensor::{Device, FloatTensor, IntTensor},
};
use burn::tensor::{FloatDType, Shape, TensorData};
use burn_autodiff::{Autodiff, grads::Gradients, ops::Ops};

/// A float tensor of the autodiff backend around `B`.
pub(crate) type Tracked<B, C> = FloatTensor<Autodiff<B, C>>;

/// Host indices as an i32 tensor.
pub(crate) fn int_tensor<B: Backend>(values: &[u32], device: &Device<B>) -> IntTensor<B> {
    let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
    let length = values.len();
    B::int_from_data(TensorData::new(values, [length]), device)
}

/// `[D]` -> `[1, D]` in `dtype`.
pub(crate) fn row<B: Backend>(values: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    let size = values.shape()[0];
    B::float_reshape(B::float_cast(values, dtype), Shape::new([1, size]))
}

/// `[R, D]` -> `[D]`.
pub(crate) fn column_sum<B: Backend>(values: FloatTensor<B>) -> FloatTensor<B> {
    let size = values.shape()[1];
    B::float_reshape(B::float_sum_dim(values, 0), Shape::new([size]))
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let exp = B::float_exp(B::float_neg(x));
    B::float_recip(B::float_add_scalar(exp, 1.into()))
}

/// `silu(x) = x sigmoid(x)` and its derivative, `s + silu (1 - s)`.
pub(crate) fn silu_with_slope<B: Backend>(x: FloatTensor<B>) -> (FloatTensor<B>, FloatTensor<B>) {
    let sigmoid = sigmoid::<B>(x.clone());
    let silu = B::float_mul(x, sigmoid.clone());
    let rest = B::float_add_scalar(B::float_neg(sigmoid.clone()), 1.into());
    let slope = B::float_add(sigmoid, B::float_mul(silu.clone(), rest));
    (silu, slope)
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
