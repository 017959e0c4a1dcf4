//! What the operations share about backend primitives.

use burn::backend::{
    Backend,
    tensor::{Device, IntTensor},
};
use burn::tensor::TensorData;
use burn_autodiff::Autodiff;

/// A float tensor of the autodiff backend around `B`.
pub(crate) type Tracked<B, C> = burn::backend::tensor::FloatTensor<Autodiff<B, C>>;

/// Host indices as an i32 tensor.
pub(crate) fn int_tensor<B: Backend>(values: &[u32], device: &Device<B>) -> IntTensor<B> {
    let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
    let length = values.len();
    B::int_from_data(TensorData::new(values, [length]), device)
}
