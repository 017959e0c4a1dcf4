//! Implementation from Burn's primitives, for every backend.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{Shape, Slice};

/// See [`crate::TreeNnOps::grouped_linear`].
pub(crate) fn forward<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    group_sizes: &[usize],
) -> FloatTensor<B> {
    let outputs = groups(group_sizes)
        .map(|(group, rows)| {
            let x = B::float_slice(x.clone(), &[Slice::from(rows)]);
            B::float_matmul(x, matrix::<B>(&weight, group))
        })
        .collect();
    B::float_cat(outputs, 0)
}

/// See [`crate::TreeNnOps::grouped_linear_backward`].
pub(crate) fn backward<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    grad: FloatTensor<B>,
    group_sizes: &[usize],
) -> (FloatTensor<B>, FloatTensor<B>) {
    let shape = weight.shape();
    let mut grad_x = Vec::new();
    let mut grad_weight = Vec::with_capacity(group_sizes.len());
    let zeros = |count: usize| {
        B::float_zeros(
            Shape::new([count, shape[1], shape[2]]),
            &x.device(),
            weight.dtype().into(),
        )
    };
    let mut done = 0;
    for (group, rows) in groups(group_sizes) {
        if group > done {
            grad_weight.push(zeros(group - done));
        }
        done = group + 1;
        let slice = [Slice::from(rows)];
        let x = B::float_slice(x.clone(), &slice);
        let grad = B::float_slice(grad.clone(), &slice);
        let matrix = B::float_transpose(matrix::<B>(&weight, group));
        grad_x.push(B::float_matmul(grad.clone(), matrix));
        let part = B::float_matmul(B::float_transpose(x), grad);
        grad_weight.push(B::float_reshape(part, Shape::new([1, shape[1], shape[2]])));
    }
    if done < group_sizes.len() {
        grad_weight.push(zeros(group_sizes.len() - done));
    }
    (B::float_cat(grad_x, 0), B::float_cat(grad_weight, 0))
}

/// The groups that have rows, with their rows.
fn groups(sizes: &[usize]) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> + '_ {
    let mut start = 0;
    sizes
        .iter()
        .enumerate()
        .map(move |(group, &size)| {
            start += size;
            (group, start - size..start)
        })
        .filter(|(_, rows)| !rows.is_empty())
}

fn matrix<B: Backend>(weight: &FloatTensor<B>, group: usize) -> FloatTensor<B> {
    let shape = weight.shape();
    let matrix = B::float_slice(weight.clone(), &[Slice::from(group..group + 1)]);
    B::float_reshape(matrix, Shape::new([shape[1], shape[2]]))
}
