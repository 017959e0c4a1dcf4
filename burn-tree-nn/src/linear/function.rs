//! The public functions.

use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn_tree_kit::check::ArgumentError;

use super::check::check;
use crate::ops::TreeNnOps;

/// `x weight`, the product of a linear layer: `x [.., K]`, `weight [K, N]` -> `[.., N]`, all of one
/// dtype. Sums are in at least f32.
///
/// Differentiable in both tensors; the gradient of a tensor that is not tracked, such as a frozen
/// weight, is not computed. On GPUs of compute capability 9.0, f16 and bf16 products run in a
/// tensor-core kernel of this crate, which needs no tuning; elsewhere, and for other dtypes, Burn's
/// product runs.
///
/// # Panics
/// If [`try_linear`] refuses the arguments, with the text of its error.
///
/// # Example
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_tree_nn::linear;
///
/// let device = Device::flex();
/// let layer = LinearConfig::new(4, 3).with_bias(false).init(&device);
/// let x = Tensor::<3>::random([2, 5, 4], Distribution::Default, &device);
/// // In place of `layer.forward(x)`:
/// let y = linear(x, layer.weight.val());
/// assert_eq!(y.dims(), [2, 5, 3]);
/// ```
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>) -> Tensor<D> {
    try_linear(x, weight).unwrap_or_else(|error| panic!("{error}"))
}

/// [`linear`] that returns an error for arguments that do not fit.
///
/// # Errors
/// If the tensors differ in `K`, dtype or device, are not of floats, or `K` or `N` is 0.
pub fn try_linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
) -> Result<Tensor<D>, ArgumentError> {
    check("linear", &x, &weight)?;
    let shape = output_shape(&x, &weight);
    if x.shape().num_elements() == 0 {
        return Ok(Tensor::zeros(shape, (&x.device(), x.dtype())));
    }
    let y = <Dispatch as TreeNnOps>::linear_output(rows(x).into_dispatch(), weight.into_dispatch());
    Ok(Tensor::<2>::from_dispatch(y).reshape(shape))
}

/// Products of one input with two or three weights, such as the query, key and value projections:
/// `x [.., K]`, `weights [K, N_i]` -> `[.., N_i]` each.
///
/// As [`linear`] of each weight, with one product for the gradient of `x`: the sum over the weights
/// stays in the sums of the product.
///
/// # Panics
/// If [`try_linears`] refuses the arguments, with the text of its error.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_tree_nn::linears;
///
/// let device = Device::flex();
/// let random = |shape: [usize; 2]| Tensor::<2>::random(shape, Distribution::Default, &device);
/// let [gate, up] = linears(random([5, 4]), [random([4, 8]), random([4, 8])]);
/// assert_eq!([gate.dims(), up.dims()], [[5, 8], [5, 8]]);
/// ```
pub fn linears<const D: usize, const N: usize>(
    x: Tensor<D>,
    weights: [Tensor<2>; N],
) -> [Tensor<D>; N] {
    try_linears(x, weights).unwrap_or_else(|error| panic!("{error}"))
}

/// [`linears`] that returns an error for arguments that do not fit.
///
/// # Errors
/// If a weight does not fit `x`, as with [`try_linear`].
pub fn try_linears<const D: usize, const N: usize>(
    x: Tensor<D>,
    weights: [Tensor<2>; N],
) -> Result<[Tensor<D>; N], ArgumentError> {
    const { assert!(N == 2 || N == 3, "two or three weights") };
    for weight in &weights {
        check("linears", &x, weight)?;
    }
    let shapes: Vec<_> = weights
        .iter()
        .map(|weight| output_shape(&x, weight))
        .collect();
    if x.shape().num_elements() == 0 {
        let options = (&x.device(), x.dtype());
        return Ok(std::array::from_fn(|index| {
            Tensor::zeros(shapes[index], options)
        }));
    }
    let x = rows(x).into_dispatch();
    let mut weights = weights.into_iter().map(Tensor::into_dispatch);
    let mut next = || weights.next().expect("N weights");
    let (first, second) = (next(), next());
    let outputs = match N {
        2 => {
            let outputs = <Dispatch as TreeNnOps>::linear_pair(x, first, second);
            vec![outputs.0, outputs.1]
        }
        _ => {
            let outputs = <Dispatch as TreeNnOps>::linear_triple(x, first, second, next());
            vec![outputs.0, outputs.1, outputs.2]
        }
    };
    let mut outputs = outputs.into_iter().zip(shapes);
    Ok(std::array::from_fn(|_| {
        let (output, shape) = outputs.next().expect("N outputs");
        Tensor::<2>::from_dispatch(output).reshape(shape)
    }))
}

fn output_shape<const D: usize>(x: &Tensor<D>, weight: &Tensor<2>) -> [usize; D] {
    let mut shape = x.dims();
    shape[D - 1] = weight.dims()[1];
    shape
}

/// `[.., K]` -> `[R, K]`
fn rows<const D: usize>(x: Tensor<D>) -> Tensor<2> {
    let columns = x.dims()[D - 1];
    let rows = x.shape().num_elements() / columns;
    x.reshape([rows, columns])
}
