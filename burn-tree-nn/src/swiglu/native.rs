//! Implementation for CPU tensors: one vectorised pass.

use burn::backend::TensorMetadata;
use burn_flex::FlexTensor;
use burn_tree_kit::cpu::Number;
use burn_tree_kit::vectorised_fn;
use rayon::prelude::*;

use crate::native::tensor;

/// Number of elements in the block of one thread.
const BLOCK: usize = 1 << 14;

#[inline(always)]
fn sigmoid<T: Number>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// See [`crate::TreeNnOps::swiglu`]; both tensors have elements of type `T`.
pub(crate) fn forward<T: Number>(gate: FlexTensor, up: FlexTensor) -> FlexTensor {
    let [gate, up] = [gate, up].map(|tensor| tensor.to_contiguous());
    let mut y = vec![T::ZERO; gate.shape().num_elements()];
    y.par_chunks_mut(BLOCK)
        .zip(gate.storage::<T>().par_chunks(BLOCK))
        .zip(up.storage::<T>().par_chunks(BLOCK))
        .for_each(|((y, gate), up)| forward_block(y, gate, up));
    tensor(y, gate.shape())
}

/// See [`crate::TreeNnOps::swiglu_backward`]; all tensors have elements of type `T`.
pub(crate) fn backward<T: Number>(
    gate: FlexTensor,
    up: FlexTensor,
    grad: FlexTensor,
) -> (FlexTensor, FlexTensor) {
    let [gate, up, grad] = [gate, up, grad].map(|tensor| tensor.to_contiguous());
    let elements = gate.shape().num_elements();
    let [mut grad_gate, mut grad_up] = [0; 2].map(|_| vec![T::ZERO; elements]);
    grad_gate
        .par_chunks_mut(BLOCK)
        .zip(grad_up.par_chunks_mut(BLOCK))
        .zip(gate.storage::<T>().par_chunks(BLOCK))
        .zip(up.storage::<T>().par_chunks(BLOCK))
        .zip(grad.storage::<T>().par_chunks(BLOCK))
        .for_each(|((((grad_gate, grad_up), gate), up), grad)| {
            backward_block(grad_gate, grad_up, gate, up, grad);
        });
    (tensor(grad_gate, gate.shape()), tensor(grad_up, up.shape()))
}

vectorised_fn! {
    fn forward_block<T: Number>(y: &mut [T], gate: &[T], up: &[T]) {
        for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
            *y = gate * sigmoid(gate) * up;
        }
    }
}

vectorised_fn! {
    fn backward_block<T: Number>(
        grad_gate: &mut [T],
        grad_up: &mut [T],
        gate: &[T],
        up: &[T],
        grad: &[T],
    ) {
        let inputs = gate.iter().zip(up).zip(grad);
        let outputs = grad_gate.iter_mut().zip(grad_up);
        for (((&gate, &up), &grad), (grad_gate, grad_up)) in inputs.zip(outputs) {
            let sigmoid = sigmoid(gate);
            let silu = gate * sigmoid;
            *grad_up = grad * silu;
            *grad_gate = grad * up * (sigmoid + silu * (T::ONE - sigmoid));
        }
    }
}
