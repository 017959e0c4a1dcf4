//! Implementation for CPU tensors in memory: one pass over each row.

use std::borrow::Cow;

use burn_tree_kit::cpu::dot;
use burn_tree_kit::vectorised_fn;
use rayon::prelude::*;

use burn_tree_kit::cpu::Number;

/// Numbers of a block of rows that one thread works on.
const BLOCK: usize = 1 << 14;

/// What the normalised values are multiplied by.
pub(crate) fn scale<T: Number>(weight: &[T], zero_centered: bool) -> Cow<'_, [T]> {
    match zero_centered {
        true => weight
            .iter()
            .map(|&weight| T::from_f64(1.0) + weight)
            .collect(),
        false => weight.into(),
    }
}

/// `x [R, D]`, `scale [D]` -> `y [R, D]` and the inverse root mean square `[R]`.
pub(crate) fn forward<T: Number>(x: &[T], scale: &[T], epsilon: f64) -> (Vec<T>, Vec<T>) {
    let size = scale.len();
    let block = (BLOCK / size).max(1);
    let mut y = vec![T::ZERO; x.len()];
    let mut inverse_rms = vec![T::ZERO; x.len() / size];
    y.par_chunks_mut(block * size)
        .zip(x.par_chunks(block * size))
        .zip(inverse_rms.par_chunks_mut(block))
        .for_each(|((y, x), inverse_rms)| forward_rows(y, inverse_rms, x, scale, epsilon));
    (y, inverse_rms)
}

/// Gradients `[R, D]` of `x` and `[D]` of `scale`. The latter is summed block by block, in the
/// same order whatever the number of threads.
pub(crate) fn backward<T: Number>(
    x: &[T],
    scale: &[T],
    inverse_rms: &[T],
    grad: &[T],
) -> (Vec<T>, Vec<T>) {
    let size = scale.len();
    let block = (BLOCK / size).max(1);
    let mut grad_x = vec![T::ZERO; x.len()];
    let parts: Vec<Vec<T>> = grad_x
        .par_chunks_mut(block * size)
        .zip(x.par_chunks(block * size))
        .zip(grad.par_chunks(block * size))
        .zip(inverse_rms.par_chunks(block))
        .map(|(((grad_x, x), grad), inverse_rms)| {
            let mut grad_scale = vec![T::ZERO; size];
            backward_rows(grad_x, &mut grad_scale, x, scale, inverse_rms, grad);
            grad_scale
        })
        .collect();
    let mut grad_scale = vec![T::ZERO; size];
    for part in parts {
        for (sum, part) in grad_scale.iter_mut().zip(part) {
            *sum += part;
        }
    }
    (grad_x, grad_scale)
}

vectorised_fn! {
    fn forward_rows<T: Number>(
        y: &mut [T],
        inverse_rms: &mut [T],
        x: &[T],
        scale: &[T],
        epsilon: f64,
    ) {
        let size = scale.len();
        let rows = y.chunks_exact_mut(size).zip(x.chunks_exact(size));
        for ((y, x), inverse_rms) in rows.zip(inverse_rms) {
            let mean_square = dot(x, x).to_f64() / size as f64;
            let factor = T::from_f64(1.0 / (mean_square + epsilon).sqrt());
            *inverse_rms = factor;
            for ((y, &x), &scale) in y.iter_mut().zip(x).zip(scale) {
                *y = x * factor * scale;
            }
        }
    }
}

vectorised_fn! {
    /// Adds to the gradient of the scale.
    fn backward_rows<T: Number>(
        grad_x: &mut [T],
        grad_scale: &mut [T],
        x: &[T],
        scale: &[T],
        inverse_rms: &[T],
        grad: &[T],
    ) {
        let size = scale.len();
        let mean_factor = T::from_f64(1.0 / size as f64);
        let mut grad_normed = vec![T::ZERO; size];
        let rows = grad_x.chunks_exact_mut(size).zip(x.chunks_exact(size));
        for (((grad_x, x), grad), &factor) in rows.zip(grad.chunks_exact(size)).zip(inverse_rms) {
            for i in 0..size {
                grad_normed[i] = grad[i] * scale[i];
                grad_scale[i] += grad[i] * x[i] * factor;
            }
            let mean = dot(&grad_normed, x) * factor * mean_factor;
            for i in 0..size {
                grad_x[i] = factor * (grad_normed[i] - x[i] * factor * mean);
            }
        }
    }
}
