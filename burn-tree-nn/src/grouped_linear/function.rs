//! The public function.

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn_tree_kit::check::ArgumentError;

use super::check::check;
use crate::ops::TreeNnOps;

/// Multiplies each group of rows by its own matrix: `x [R, I]`, `weight [E, I, O]` -> `[R, O]`, all
/// of one dtype. The first `group_sizes[0]` rows are multiplied by `weight[0]`, the next
/// `group_sizes[1]` by `weight[1]`, and so on.
///
/// Differentiable in both tensors. The gradient of a matrix whose group is empty is exactly zero.
///
/// # Panics
/// If [`try_grouped_linear`] returns an error, with its message.
///
/// # Example
/// ```
/// use std::sync::Arc;
///
/// use burn::tensor::{Device, Tensor};
/// use burn_tree_nn::grouped_linear;
///
/// let device = Device::flex();
/// let x = Tensor::<2>::from_floats([[1.0], [2.0], [3.0]], &device);
/// let weight = Tensor::<3>::from_floats([[[10.0]], [[0.0]], [[100.0]]], &device);
/// let y = grouped_linear(x, weight, &Arc::new(vec![2, 0, 1])).into_data();
/// assert_eq!(y.to_vec::<f32>().unwrap(), [10.0, 20.0, 300.0]);
/// ```
pub fn grouped_linear(x: Tensor<2>, weight: Tensor<3>, group_sizes: &Arc<Vec<usize>>) -> Tensor<2> {
    try_grouped_linear(x, weight, group_sizes).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`grouped_linear`], but returns an error for invalid arguments.
///
/// # Errors
/// If the number of sizes is not `E`, they do not add up to `R`, the tensors differ in `I`, dtype
/// or device, or `E`, `I` or `O` is 0.
pub fn try_grouped_linear(
    x: Tensor<2>,
    weight: Tensor<3>,
    group_sizes: &Arc<Vec<usize>>,
) -> Result<Tensor<2>, ArgumentError> {
    check(&x, &weight, group_sizes)?;
    let ([rows, _], [_, _, output]) = (x.dims(), weight.dims());
    if rows == 0 {
        return Ok(Tensor::zeros([0, output], (&x.device(), x.dtype())));
    }
    Ok(Tensor::from_dispatch(
        <Dispatch as TreeNnOps>::grouped_linear(
            x.into_dispatch(),
            weight.into_dispatch(),
            group_sizes.clone(),
        ),
    ))
}
