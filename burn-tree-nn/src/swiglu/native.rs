//! Implementation for CPU tensors in memory: one pass, vectorised.

use burn_tree_kit::vectorised_fn;
use rayon::prelude::*;

use burn_tree_kit::cpu::Number;

/// Numbers that one thread works on at a time.
const BLOCK: usize = 1 << 14;

#[inline(always)]
fn sigmoid<T: Number>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// `silu(gate) * up`.
pub(crate) fn forward<T: Number>(gate: &[T], up: &[T]) -> Vec<T> {
    let mut y = vec![T::ZERO; gate.len()];
    y.par_chunks_mut(BLOCK)
        .zip(gate.par_chunks(BLOCK))
        .zip(up.par_chunks(BLOCK))
        .for_each(|((y, gate), up)| forward_block(y, gate, up));
    y
}

/// Gradients of `gate` and `up`.
pub(crate) fn backward<T: Number>(gate: &[T], up: &[T], grad: &[T]) -> (Vec<T>, Vec<T>) {
    let mut grad_gate = vec![T::ZERO; gate.len()];
    let mut grad_up = vec![T::ZERO; gate.len()];
    grad_gate
        .par_chunks_mut(BLOCK)
        .zip(grad_up.par_chunks_mut(BLOCK))
        .zip(gate.par_chunks(BLOCK))
        .zip(up.par_chunks(BLOCK))
        .zip(grad.par_chunks(BLOCK))
        .for_each(|((((grad_gate, grad_up), gate), up), grad)| {
            backward_block(grad_gate, grad_up, gate, up, grad);
        });
    (grad_gate, grad_up)
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
