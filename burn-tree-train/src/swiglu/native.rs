//! Implementation for CPU tensors in memory: one pass, vectorised.

use burn_tree_attn::vector::vectorised;
use rayon::prelude::*;

use crate::native::Number;

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
        .for_each(|((y, gate), up)| {
            vectorised(|| {
                for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
                    *y = gate * sigmoid(gate) * up;
                }
            });
        });
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
            vectorised(|| {
                for i in 0..grad.len() {
                    let sigmoid = sigmoid(gate[i]);
                    let silu = gate[i] * sigmoid;
                    grad_up[i] = grad[i] * silu;
                    grad_gate[i] = grad[i] * up[i] * (sigmoid + silu * (T::ONE - sigmoid));
                }
            });
        });
    (grad_gate, grad_up)
}
