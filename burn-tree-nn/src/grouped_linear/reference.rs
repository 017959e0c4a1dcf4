//! The definition: every row by its own matrix.

use burn::tensor::Tensor;

/// `output[r] = x[r] weight[group of r]`.
pub fn grouped_linear(x: Tensor<2>, weight: Tensor<3>, group_sizes: &[usize]) -> Tensor<2> {
    let groups = group_sizes
        .iter()
        .enumerate()
        .flat_map(|(group, &size)| std::iter::repeat_n(group, size));
    let rows = groups
        .enumerate()
        .map(|(row, group)| {
            let matrix: Tensor<2> = weight.clone().slice_dim(0, group..group + 1).squeeze_dim(0);
            x.clone().slice_dim(0, row..row + 1).matmul(matrix)
        })
        .collect();
    Tensor::cat(rows, 0)
}
