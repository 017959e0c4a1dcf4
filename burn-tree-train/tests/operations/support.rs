//! What the tests of this crate share: the device under test, tensors, comparisons.

#![allow(dead_code)] // One of the test programs uses part of it.

use burn::tensor::{DType, Device, Tensor, TensorData};
use tree_training_devices::{computes_in, device_from_environment};

/// The device named by `BURN_DEVICE`, with autodiff.
pub fn device() -> Device {
    device_from_environment().autodiff()
}

/// Of f64, f32, f16 and bf16 those in which the device computes, each with its rounding error.
pub fn precisions() -> Vec<(DType, f64)> {
    [
        (DType::F64, 2f64.powi(-53)),
        (DType::F32, 2f64.powi(-24)),
        (DType::F16, 2f64.powi(-11)),
        (DType::BF16, 2f64.powi(-8)),
    ]
    .into_iter()
    .filter(|&(dtype, _)| computes_in(dtype))
    .collect()
}

/// The widest of them.
pub fn widest() -> (DType, f64) {
    precisions()[0]
}

/// Numbers in -1..1, the same on every device.
pub fn numbers<const D: usize>(shape: [usize; D], seed: usize, dtype: DType) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count)
        .map(|index| ((index * 7919 + seed * 104_729 + 13) % 2003) as f64 / 1001.5 - 1.0)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), (&device(), dtype)).require_grad()
}

/// The same values in f64 on Flex, as a leaf of its own.
pub fn exact<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
    let data = tensor.to_data().convert::<f64>();
    Tensor::from_data(data, (&Device::flex().autodiff(), DType::F64)).require_grad()
}

/// Asserts `|found - expected| <= tolerance * (1 + |expected|)` everywhere.
pub fn assert_close<const D: usize>(found: Tensor<D>, expected: Tensor<D>, tolerance: f64) {
    assert_eq!(found.dims(), expected.dims());
    let values = |tensor: Tensor<D>| {
        tensor
            .into_data()
            .convert::<f64>()
            .try_into_vec::<f64>()
            .unwrap()
    };
    let (found, expected) = (values(found), values(expected));
    for (index, (found, expected)) in found.into_iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= tolerance * (1.0 + expected.abs()),
            "element {index} is {found} instead of {expected}"
        );
    }
}

/// The bytes of a tensor.
pub fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u8> {
    tensor.into_data().as_bytes().to_vec()
}
