//! CPU tensors of Flex for the native implementations.

use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};
use burn_tree_kit::cpu::Number;

/// The dtype of the tensors, if it is the same for all.
pub(crate) fn common_dtype(tensors: &[&FlexTensor]) -> Option<DType> {
    let first = tensors.first()?.dtype();
    tensors
        .iter()
        .all(|tensor| tensor.dtype() == first)
        .then_some(first)
}

/// A contiguous tensor of `values`; their number is that of `shape`.
pub(crate) fn tensor<T: Number>(values: Vec<T>, shape: Shape) -> FlexTensor {
    FlexTensor::new(
        Bytes::from_elems(values),
        Layout::contiguous(shape),
        T::dtype(),
    )
}
