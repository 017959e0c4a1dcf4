//! Root-mean-square norm as one operation, which keeps one number per row for its gradient.

mod autodiff;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;
#[cfg(feature = "flex")]
pub(crate) mod native;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::TreeNnOps;

pub(crate) use autodiff::forward as autodiff_forward;

/// `y = weight * cast(x * rsqrt(mean(x^2) + epsilon))` over the last dimension: `x [.., D]`,
/// `weight [D]` -> `[.., D]` in the dtype of `x`.
///
/// Computed in at least f32; the normalised value is rounded to the dtype of `x` before it is
/// multiplied by the weight, which may have another dtype.
///
/// # Panics
///
/// If the last dimension of `x` is not that of `weight`.
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    norm(x, weight, epsilon, false)
}

/// [`rms_norm`] with a weight centred on zero: `y = cast((1 + weight) * x * rsqrt(mean(x^2) +
/// epsilon))`.
///
/// Only the result is rounded to the dtype of `x`.
///
/// # Panics
///
/// If the last dimension of `x` is not that of `weight`.
pub fn zero_centered_rms_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    norm(x, weight, epsilon, true)
}

fn norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
    zero_centered: bool,
) -> Tensor<D> {
    let shape = x.dims();
    let [size] = weight.dims();
    assert_eq!(
        shape[D - 1],
        size,
        "rms_norm: x has {} features, weight {size}",
        shape[D - 1]
    );
    let rows = shape[..D - 1].iter().product::<usize>();
    if rows == 0 {
        return x;
    }
    let (y, _inverse_rms) = <Dispatch as TreeNnOps>::rms_norm(
        x.reshape([rows, size]).into_dispatch(),
        weight.into_dispatch(),
        epsilon,
        zero_centered,
    );
    Tensor::<2>::from_dispatch(y).reshape(shape)
}
