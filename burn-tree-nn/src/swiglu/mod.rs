//! `silu(gate) * up` as one operation, which keeps nothing but its inputs for the gradient.

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

/// `silu(gate) * up` element by element, `silu(x) = x / (1 + e^-x)`, for tensors of one shape and
/// dtype. `silu` is computed in at least f32 and rounded to the dtype before the product.
///
/// # Panics
///
/// If shapes or dtypes differ.
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    assert_eq!(
        gate.dims(),
        up.dims(),
        "swiglu: gate and up must have the same shape"
    );
    assert_eq!(
        gate.dtype(),
        up.dtype(),
        "swiglu: gate and up must have the same dtype"
    );
    if gate.shape().num_elements() == 0 {
        return gate;
    }
    Tensor::from_dispatch(<Dispatch as TreeNnOps>::swiglu(
        gate.into_dispatch(),
        up.into_dispatch(),
    ))
}
