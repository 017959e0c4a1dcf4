//! One matrix product per group of rows: the expert layers of a mixture of experts.

mod autodiff;
pub(crate) mod generic;
pub mod reference;

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::TreeNnOps;

pub(crate) use autodiff::forward as autodiff_forward;

/// Multiplies runs of rows by a matrix each: `x [R, I]`, `weight [E, I, O]` -> `[R, O]`; the first
/// `group_sizes[0]` rows by `weight[0]`, the next `group_sizes[1]` by `weight[1]`, and so on.
///
/// The gradient of a matrix whose group is empty is exactly zero. `x` and `weight` have the same
/// dtype.
///
/// # Panics
///
/// If the sizes do not sum to `R`, are not `E` in number, or `I` or the dtypes differ.
pub fn grouped_linear(x: Tensor<2>, weight: Tensor<3>, group_sizes: &Arc<Vec<usize>>) -> Tensor<2> {
    let [rows, input] = x.dims();
    let [groups, weight_input, output] = weight.dims();
    assert!(
        group_sizes.len() == groups && group_sizes.iter().sum::<usize>() == rows,
        "grouped_linear: {} groups of {} rows in all, but weight has {groups} matrices and x {rows} \
         rows",
        group_sizes.len(),
        group_sizes.iter().sum::<usize>(),
    );
    assert_eq!(
        input, weight_input,
        "grouped_linear: x has {input} features, weight expects {weight_input}"
    );
    assert_eq!(
        x.dtype(),
        weight.dtype(),
        "grouped_linear: x and weight must have the same dtype"
    );
    if rows == 0 {
        return Tensor::zeros([0, output], (&x.device(), x.dtype()));
    }
    Tensor::from_dispatch(<Dispatch as TreeNnOps>::grouped_linear(
        x.into_dispatch(),
        weight.into_dispatch(),
        group_sizes.clone(),
    ))
}
