//! The definition, written to be read.

use burn::tensor::{Tensor, activation::silu};

/// See [`super::swiglu()`].
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    silu(gate) * up
}
