//! Implementation for CPU tensors: one pass over each row.

use std::borrow::Cow;

use burn::backend::TensorMetadata;
use burn_flex::FlexTensor;
use burn_tree_kit::cpu::{Number, dot};
use burn_tree_kit::vectorised_fn;
use rayon::prelude::*;

use super::scale::NormScale;
use crate::native::tensor;

/// Number of elements in the block of rows of one thread.
const BLOCK: usize = 1 << 14;

/// See [`crate::TreeNnOps::rms_norm`]; both tensors have elements of type `T`.
pub(crate) fn forward<T: Number>(
    x: FlexTensor,
    weight: FlexTensor,
    epsilon: f64,
    scale: NormScale,
) -> (FlexTensor, FlexTensor) {
    let [x, weight] = [x, weight].map(|tensor| tensor.to_contiguous());
    let shape = x.shape();
    let factors = factors::<T>(weight.storage(), scale);
    let x: &[T] = x.storage();
    let size = factors.len();
    let rows = x.len() / size;
    let block = (BLOCK / size).max(1);
    let mut y = vec![T::ZERO; x.len()];
    let mut inverse_rms = vec![T::ZERO; rows];
    y.par_chunks_mut(block * size)
        .zip(x.par_chunks(block * size))
        .zip(inverse_rms.par_chunks_mut(block))
        .for_each(|((y, x), inverse_rms)| forward_rows(y, inverse_rms, x, &factors, epsilon));
    (tensor(y, shape), tensor(inverse_rms, [rows, 1].into()))
}

/// See [`crate::TreeNnOps::rms_norm_backward`]; all tensors have elements of type `T`. The gradient
/// of the weight is summed block by block, in the same order for every number of threads.
pub(crate) fn backward<T: Number>(
    x: FlexTensor,
    weight: FlexTensor,
    inverse_rms: FlexTensor,
    grad: FlexTensor,
    scale: NormScale,
) -> (FlexTensor, FlexTensor) {
    let [x, weight, inverse_rms, grad] =
        [x, weight, inverse_rms, grad].map(|tensor| tensor.to_contiguous());
    let factors = factors::<T>(weight.storage(), scale);
    let size = factors.len();
    let block = (BLOCK / size).max(1);
    let values: &[T] = x.storage();
    let mut grad_x = vec![T::ZERO; values.len()];
    let parts: Vec<Vec<T>> = grad_x
        .par_chunks_mut(block * size)
        .zip(values.par_chunks(block * size))
        .zip(grad.storage::<T>().par_chunks(block * size))
        .zip(inverse_rms.storage::<T>().par_chunks(block))
        .map(|(((grad_x, x), grad), inverse_rms)| {
            let mut grad_factors = vec![T::ZERO; size];
            backward_rows(grad_x, &mut grad_factors, x, &factors, inverse_rms, grad);
            grad_factors
        })
        .collect();
    let mut grad_weight = vec![T::ZERO; size];
    for part in parts {
        for (sum, part) in grad_weight.iter_mut().zip(part) {
            *sum += part;
        }
    }
    (
        tensor(grad_x, x.shape()),
        tensor(grad_weight, weight.shape()),
    )
}

/// The factors of the normalised values.
fn factors<T: Number>(weight: &[T], scale: NormScale) -> Cow<'_, [T]> {
    match scale {
        NormScale::Weight => weight.into(),
        NormScale::OnePlusWeight => weight.iter().map(|&weight| T::ONE + weight).collect(),
    }
}

vectorised_fn! {
    fn forward_rows<T: Number>(
        y: &mut [T],
        inverse_rms: &mut [T],
        x: &[T],
        factors: &[T],
        epsilon: f64,
    ) {
        let size = factors.len();
        let rows = y.chunks_exact_mut(size).zip(x.chunks_exact(size));
        for ((y, x), inverse_rms) in rows.zip(inverse_rms) {
            let mean_square = dot(x, x).to_f64() / size as f64;
            let factor = T::from_f64(1.0 / (mean_square + epsilon).sqrt());
            *inverse_rms = factor;
            for ((y, &x), &by) in y.iter_mut().zip(x).zip(factors) {
                *y = x * factor * by;
            }
        }
    }
}

vectorised_fn! {
    /// Adds to the gradient of the factors.
    fn backward_rows<T: Number>(
        grad_x: &mut [T],
        grad_factors: &mut [T],
        x: &[T],
        factors: &[T],
        inverse_rms: &[T],
        grad: &[T],
    ) {
        let size = factors.len();
        let mean_factor = T::from_f64(1.0 / size as f64);
        let mut grad_normed = vec![T::ZERO; size];
        let rows = grad_x.chunks_exact_mut(size).zip(x.chunks_exact(size));
        for (((grad_x, x), grad), &factor) in rows.zip(grad.chunks_exact(size)).zip(inverse_rms) {
            for i in 0..size {
                grad_normed[i] = grad[i] * factors[i];
                grad_factors[i] += grad[i] * x[i] * factor;
            }
            let mean = dot(&grad_normed, x) * factor * mean_factor;
            for i in 0..size {
                grad_x[i] = factor * (grad_normed[i] - x[i] * factor * mean);
            }
        }
    }
}
