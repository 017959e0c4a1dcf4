//! Implementation from Burn's primitives, for every backend.

use burn::backend::{Backend, tensor::FloatTensor};

use super::tensors::InputGradientTerm;

/// See [`crate::TreeNnOps::linear_output`].
pub(crate) fn linear<B: Backend>(x: FloatTensor<B>, weight: FloatTensor<B>) -> FloatTensor<B> {
    B::float_matmul(x, weight)
}

/// See [`crate::TreeNnOps::linear_grad_input`].
pub(crate) fn grad_input<B: Backend>(terms: Vec<InputGradientTerm<B>>) -> FloatTensor<B> {
    terms
        .into_iter()
        .map(|term| B::float_matmul(term.grad, B::float_transpose(term.weight)))
        .reduce(B::float_add)
        .expect("there is at least one weight")
}

/// See [`crate::TreeNnOps::linear_grad_weight`].
pub(crate) fn grad_weight<B: Backend>(x: FloatTensor<B>, grad: FloatTensor<B>) -> FloatTensor<B> {
    B::float_matmul(B::float_transpose(x), grad)
}
