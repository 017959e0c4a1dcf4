//! CPU tensors of Flex, as the native implementations take and return them.

use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};
use burn_tree_kit::cpu::Number;

/// The dtype of the tensors, if all have the same.
pub(crate) fn common_dtype(tensors: &[&FlexTensor]) -> Option<DType> {
    let first = tensors.first()?.dtype();
    tensors
        .iter()
        .all(|tensor| tensor.dtype() == first)
        .then_some(first)
}

/// A contiguous tensor of `values`, as many as `shape` has elements.
pub(crate) fn tensor<T: Number>(values: Vec<T>, shape: Shape) -> FlexTensor {
    FlexTensor::new(
        Bytes::from_elems(values),
        Layout::contiguous(shape),
        T::dtype(),
    )
}
