//! Norm and gated activation against their definitions, values and gradients.

use burn::tensor::{DType, Device, Tensor, TensorData, Tolerance};
use burn_tree_train::{rms_norm, swiglu};

const EPSILON: f64 = 1e-6;

fn numbers<const D: usize>(shape: [usize; D], seed: usize, dtype: DType) -> Tensor<D> {
    let values: Vec<f64> = (0..shape.iter().product())
        .map(|index: usize| ((index * 7919 + seed * 104_729) % 2003) as f64 / 333.7 - 3.0)
        .collect();
    let device = Device::flex().autodiff();
    Tensor::from_data(TensorData::new(values, shape), (&device, dtype)).require_grad()
}

fn assert_close<const D: usize>(found: Tensor<D>, expected: Tensor<D>, tolerance: f64) {
    assert_eq!(found.dtype(), expected.dtype());
    found.into_data().convert::<f64>().assert_approx_eq::<f64>(
        &expected.into_data().convert::<f64>(),
        Tolerance::absolute(tolerance).set_relative(tolerance),
    );
}

/// Rounding of one operation: 2^-24, 2^-53 and 2^-8, times the number of them.
const PRECISIONS: [(DType, f64); 3] =
    [(DType::F32, 2e-5), (DType::F64, 1e-13), (DType::BF16, 2e-2)];

#[test]
fn norm_equals_its_definition() {
    for (dtype, tolerance) in PRECISIONS {
        for (x_dtype, weight_dtype) in [(dtype, dtype), (dtype, DType::F32)] {
            let x = numbers([2, 3, 5, 48], 1, x_dtype);
            let weight = numbers([48], 2, weight_dtype);
            let factors = numbers([2, 3, 5, 48], 3, x_dtype).detach();
            let found = rms_norm(x.clone(), weight.clone(), EPSILON);
            let expected = rms_norm::reference::rms_norm(x.clone(), weight.clone(), EPSILON);
            assert_close(found.clone(), expected.clone(), tolerance);
            let found = (found * factors.clone()).sum().backward();
            let expected = (expected * factors).sum().backward();
            let pair = |tensor: &Tensor<4>| {
                (
                    tensor.grad(&found).unwrap(),
                    tensor.grad(&expected).unwrap(),
                )
            };
            let (found_x, expected_x) = pair(&x);
            assert_close(found_x, expected_x, tolerance);
            // A sum of 30 numbers of size 10; in bf16 the definition's own sum is the coarser one.
            let (found, expected) = (
                weight.grad(&found).unwrap(),
                weight.grad(&expected).unwrap(),
            );
            assert_close(found, expected, 30.0 * tolerance);
        }
    }
}

/// The row of zeros that padding may be: no division by zero.
#[test]
fn a_row_of_zeros_stays_zero() {
    let x = Tensor::<2>::zeros([2, 8], &Device::flex().autodiff()).require_grad();
    let weight = numbers([8], 1, DType::F32);
    let y = rms_norm(x.clone(), weight, EPSILON);
    assert_eq!(y.clone().abs().max().into_scalar::<f32>(), 0.0);
    let gradients = y.sum().backward();
    let gradient = x.grad(&gradients).unwrap().into_data();
    assert!(gradient.iter::<f32>().all(f32::is_finite));
}

#[test]
fn activation_equals_its_definition() {
    for (dtype, tolerance) in PRECISIONS {
        let gate = numbers([3, 7, 40], 1, dtype);
        let up = numbers([3, 7, 40], 2, dtype);
        let found = swiglu(gate.clone(), up.clone());
        let expected = swiglu::reference::swiglu(gate.clone(), up.clone());
        assert_close(found.clone(), expected.clone(), tolerance);
        let (found, expected) = (found.sum().backward(), expected.sum().backward());
        for tensor in [&gate, &up] {
            let pair = (
                tensor.grad(&found).unwrap(),
                tensor.grad(&expected).unwrap(),
            );
            assert_close(pair.0, pair.1, 2.0 * tolerance);
        }
    }
}

#[test]
fn activation_of_extreme_gates() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F32, DType::F64] {
        let gate = Tensor::<1>::from_data(
            TensorData::from([-1e30f64, -1e4, -100.0, 0.0, 100.0, 1e30]),
            (&device, dtype),
        )
        .require_grad();
        let up = Tensor::<1>::ones([6], (&device, dtype)).require_grad();
        let y = swiglu(gate.clone(), up.clone());
        assert_close(
            y.clone(),
            Tensor::from_data(
                TensorData::from([0.0f64, 0.0, 0.0, 0.0, 100.0, 1e30]),
                (&device, dtype),
            ),
            1e-6,
        );
        let gradients = y.sum().backward();
        let slopes: Vec<f64> = gate.grad(&gradients).unwrap().into_data().iter().collect();
        for (slope, expected) in slopes.iter().zip([0.0, 0.0, 0.0, 0.5, 1.0, 1.0]) {
            assert!(
                (slope - expected).abs() < 1e-6,
                "{slope} instead of {expected}"
            );
        }
    }
}
