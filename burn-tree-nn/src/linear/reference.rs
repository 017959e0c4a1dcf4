//! The definition, number by number.

use burn::tensor::Tensor;

/// `y[r, n] = sum over k of x[r, k] weight[k, n]`.
pub fn linear(x: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
    let columns = (0..weight.dims()[1])
        .map(|column| {
            let weights = weight.clone().slice_dim(1, column..column + 1);
            (x.clone() * weights.transpose()).sum_dim(1)
        })
        .collect();
    Tensor::cat(columns, 1)
}
