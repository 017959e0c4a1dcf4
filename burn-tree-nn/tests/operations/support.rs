//! Shared code of the tests: the device under test, tensors, comparisons.

// One of the test programs uses only a part of it.
#![allow(dead_code, unused_imports, unused_macros)]

use burn::tensor::{DType, Device, Tensor, TensorData};
use tree_training_devices::{computes_in, device_from_environment};

/// The device named by `BURN_DEVICE`, with autodiff.
pub fn device() -> Device {
    device_from_environment().autodiff()
}

/// Rounding error of a dtype.
pub fn rounding(dtype: DType) -> f64 {
    2f64.powi(match dtype {
        DType::F64 => -53,
        DType::F32 => -24,
        DType::F16 => -11,
        DType::BF16 => -8,
        other => panic!("{other:?} is not tested"),
    })
}

/// The widest dtype in which the device computes.
pub fn widest() -> DType {
    match computes_in(DType::F64) {
        true => DType::F64,
        false => DType::F32,
    }
}

/// Defines a test of a function for each dtype; it passes if the device does not support the dtype.
macro_rules! in_each_dtype {
    ($function:ident: $($dtype:ident)*) => {
        mod $function {
            $(
                #[test]
                #[allow(non_snake_case)]
                fn $dtype() {
                    let dtype = burn::tensor::DType::$dtype;
                    if tree_training_devices::computes_in(dtype) {
                        super::$function(dtype);
                    }
                }
            )*
        }
    };
}
pub(crate) use in_each_dtype;

/// Numbers in -1..1, the same on every device.
pub fn numbers<const D: usize>(shape: [usize; D], seed: usize, dtype: DType) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count)
        .map(|index| ((index * 7919 + seed * 104_729 + 13) % 2003) as f64 / 1001.5 - 1.0)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), (&device(), dtype)).require_grad()
}

/// The same values in f64 on Flex, as another leaf.
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

/// The device of reference results in f64, which not every device supports.
pub fn reference_device() -> Device {
    #[cfg(feature = "flex")]
    return Device::flex();
    #[cfg(not(feature = "flex"))]
    device().inner()
}

/// Numbers in -1..1 from a small generator, the same on every device.
pub fn random<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values: Vec<f64> = (0..shape.iter().product::<usize>())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect();
    let device = reference_device();
    Tensor::from_data(TensorData::new(values, shape), (&device, DType::F64))
}

/// The numbers of a tensor.
pub fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

/// `||a - b|| / ||b||`; 0 if both are zero.
pub fn relative_error<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let (a, b) = (values(a), values(b));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut a.iter().zip(&b).map(|(a, b)| a - b));
    if error == 0.0 {
        return 0.0;
    }
    error / norm(&mut b.iter().copied())
}
