//! Compares the gate and norms with their definitions in f64, values and gradients.

use burn::tensor::{DType, Tensor, TensorData};
use burn_tree_nn::{decay_gate, gated_rms_norm, l2_norm};
use tree_training_devices::computes_in;

use crate::support::{device, random, reference_device, relative_error, values};

const EPSILON: f64 = 1e-6;

const DTYPES: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

/// Relative L2 errors after one rounding of products of inputs and of results: the project's bounds
/// for f32, slightly more than the rounding error for 16-bit dtypes.
fn tolerances(dtype: DType) -> [f64; 2] {
    match dtype {
        DType::F64 => [1e-10, 1e-10],
        DType::F32 => [1e-5, 2e-5],
        DType::F16 => [7e-4, 1.5e-3],
        _ => [5e-3, 1e-2],
    }
}

/// A leaf on the device under test, with the same values as one on the reference device.
fn leaves<const D: usize>(tensor: Tensor<D>, dtype: DType) -> (Tensor<D>, Tensor<D>) {
    let data = tensor.to_data().convert_dtype(dtype);
    let found = Tensor::from_data(data.clone(), (&device(), dtype));
    let reference = reference_device().autodiff();
    let exact = Tensor::from_data(data.convert_dtype(DType::F64), (&reference, DType::F64));
    (found.require_grad(), exact.require_grad())
}

fn assert_close<const D: usize>(
    name: &str,
    found: &Tensor<D>,
    expected: &Tensor<D>,
    tolerance: f64,
) {
    let error = relative_error(found, expected);
    assert!(
        error <= tolerance,
        "{name} in {:?}: {error:.2e}",
        found.dtype()
    );
}

#[test]
fn decay_gate_equals_its_definition() {
    for dtype in DTYPES.into_iter().filter(|&dtype| computes_in(dtype)) {
        let [forward, backward] = tolerances(dtype);
        let wide = if dtype == DType::F64 {
            dtype
        } else {
            DType::F32
        };
        // One head, an odd number of heads, and the number of a model; more rows than blocks of
        // sums.
        for (shape, parameters) in [
            ([1, 1, 1], dtype),
            ([2, 9, 7], wide),
            ([1, 700, 32], wide),
            ([3, 5, 130], dtype),
        ] {
            let [_, _, heads] = shape;
            let (a, exact_a) = leaves(random::<3>(shape, 1) * 4.0, dtype);
            let (a_log, exact_a_log) = leaves(random::<1>([heads], 2) * 2.0, parameters);
            let (dt_bias, exact_dt_bias) = leaves(random::<1>([heads], 3) * 2.0, parameters);
            let (grad, exact_grad) = leaves(random::<3>(shape, 4), wide);
            let found = decay_gate(a.clone(), a_log.clone(), dt_bias.clone());
            assert_eq!(found.dtype(), wide);
            let expected = burn_tree_nn::decay_gate::reference::decay_gate(
                exact_a.clone(),
                exact_a_log.clone(),
                exact_dt_bias.clone(),
            );
            // Inputs are exact in the wide dtype.
            assert_close("gate", &found, &expected, tolerances(wide)[0].min(forward));
            let found = (found * grad).sum().backward();
            let expected = (expected * exact_grad).sum().backward();
            let gradient = (a.grad(&found).unwrap(), exact_a.grad(&expected).unwrap());
            assert_eq!(gradient.0.dtype(), dtype);
            assert_close("gradient of a", &gradient.0, &gradient.1, backward);
            for (name, tensor, exact) in [
                ("gradient of a_log", &a_log, &exact_a_log),
                ("gradient of dt_bias", &dt_bias, &exact_dt_bias),
            ] {
                let (found, expected) = (tensor.grad(&found).unwrap(), exact.grad(&expected));
                assert_eq!(found.dtype(), parameters);
                assert_close(name, &found, &expected.unwrap(), tolerances(parameters)[1]);
            }
        }
    }
}

/// `softplus` neither overflows nor loses small values.
#[test]
fn decay_gate_of_extreme_inputs() {
    let inputs = [-1e4f32, -40.0, 0.0, 40.0, 1e4];
    let a = Tensor::<1>::from_floats(inputs, &device())
        .reshape([1, 5, 1])
        .require_grad();
    let zero = || Tensor::<1>::zeros([1], &device());
    let gate = decay_gate(a.clone(), zero(), zero());
    let expected = [0.0, -(-40f64).exp(), -2f64.ln(), -40.0, -1e4];
    for (found, expected) in values(&gate).into_iter().zip(expected) {
        assert!(
            (found - expected).abs() <= 1e-6 * expected.abs(),
            "{found}, not {expected}"
        );
    }
    let grads = gate.sum().backward();
    let slopes = values(&a.grad(&grads).unwrap());
    let expected = [0.0, -(-40f64).exp(), -0.5, -1.0, -1.0];
    for (found, expected) in slopes.into_iter().zip(expected) {
        assert!(
            (found - expected).abs() <= 1e-6 * expected.abs(),
            "{found}, not {expected}"
        );
    }
}

#[test]
fn l2_norm_equals_its_definition() {
    for dtype in DTYPES.into_iter().filter(|&dtype| computes_in(dtype)) {
        let [forward, backward] = tolerances(dtype);
        for shape in [
            [1, 1, 1],
            [2, 15, 7],
            [3, 5, 48],
            [2, 700, 128],
            [1, 3, 9216],
        ] {
            let (x, exact_x) = leaves(random::<3>(shape, 1), dtype);
            let (grad, exact_grad) = leaves(random::<3>(shape, 2), dtype);
            let found = l2_norm(x.clone(), EPSILON);
            assert_eq!(found.dtype(), dtype);
            let expected = burn_tree_nn::l2_norm::reference::l2_norm(exact_x.clone(), EPSILON);
            assert_close("norm", &found, &expected, forward);
            let found = (found * grad).sum().backward();
            let expected = (expected * exact_grad).sum().backward();
            let found = x.grad(&found).unwrap();
            assert_eq!(found.dtype(), dtype);
            // In a row of one number everything except epsilon cancels.
            if shape[2] > 1 {
                assert_close(
                    "gradient",
                    &found,
                    &exact_x.grad(&expected).unwrap(),
                    backward,
                );
            }
        }
    }
}

#[test]
fn rows_of_zeros_have_no_gradient() {
    for dtype in DTYPES.into_iter().filter(|&dtype| computes_in(dtype)) {
        let (rows, _) = leaves(random::<2>([3, 40], 1), dtype);
        let x = rows.inner().slice_fill([1..2, 0..40], 0.0);
        let x = Tensor::<2>::from_inner(x).require_grad();
        let y = l2_norm(x.clone(), EPSILON);
        let (grad, _) = leaves(random::<2>([3, 40], 2), dtype);
        let grads = (y.clone() * grad).sum().backward();
        for (name, tensor) in [("row", y), ("gradient", x.grad(&grads).unwrap())] {
            let values = values(&tensor);
            assert!(
                values[40..80].iter().all(|&value| value == 0.0),
                "{name} in {dtype:?}"
            );
            assert!(values.iter().all(|value| value.is_finite()));
            assert!(values[..40].iter().any(|&value| value != 0.0));
        }
    }
}

#[test]
fn gated_rms_norm_equals_its_definition() {
    for dtype in DTYPES.into_iter().filter(|&dtype| computes_in(dtype)) {
        let [forward, backward] = tolerances(dtype);
        let wide = if dtype == DType::F64 {
            dtype
        } else {
            DType::F32
        };
        // More rows than blocks in which the weight's gradient is summed, in groups of rows.
        for (shape, weight_dtype) in [
            ([1, 2, 1], dtype),
            ([2, 15, 7], dtype),
            ([3, 5, 48], wide),
            ([6, 700, 128], wide),
            ([1, 3, 9216], dtype),
        ] {
            let width = shape[2];
            let (x, exact_x) = leaves(random::<3>(shape, 1), dtype);
            let (gate, exact_gate) = leaves(random::<3>(shape, 2) * 4.0, dtype);
            let (weight, exact_weight) = leaves(random::<1>([width], 3), weight_dtype);
            let (grad, exact_grad) = leaves(random::<3>(shape, 4), dtype);
            let found = gated_rms_norm(x.clone(), gate.clone(), weight.clone(), EPSILON);
            assert_eq!(found.dtype(), dtype);
            let expected = burn_tree_nn::gated_rms_norm::reference::gated_rms_norm(
                exact_x.clone(),
                exact_gate.clone(),
                exact_weight.clone(),
                EPSILON,
            );
            assert_close("norm", &found, &expected, forward);
            let found = (found * grad).sum().backward();
            let expected = (expected * exact_grad).sum().backward();
            for (name, tensor, exact) in [
                ("gradient of x", &x, &exact_x),
                ("gradient of the gate", &gate, &exact_gate),
            ] {
                // In a row of one number everything except epsilon cancels.
                if width > 1 || name == "gradient of the gate" {
                    let (found, expected) = (tensor.grad(&found), exact.grad(&expected));
                    let (found, expected) = (found.unwrap(), expected.unwrap());
                    assert_eq!(found.dtype(), dtype);
                    assert_close(name, &found, &expected, backward);
                }
            }
            let found = weight.grad(&found).unwrap();
            assert_eq!(found.dtype(), weight_dtype);
            let expected = exact_weight.grad(&expected).unwrap();
            assert_close("gradient of the weight", &found, &expected, backward);
        }
    }
}

#[test]
fn gated_rms_norm_of_extreme_gates() {
    let device = device().autodiff();
    let gates = TensorData::from([[-1e30f32, -100.0, 0.0, 100.0, 1e30]]);
    let gate = Tensor::<2>::from_data(gates, &device).require_grad();
    let ones = || Tensor::<2>::ones([1, 5], &device);
    let y = gated_rms_norm(ones(), gate.clone(), ones().reshape([5]), EPSILON);
    let grads = y.clone().sum().backward();
    let found = values(&y)
        .into_iter()
        .zip(values(&gate.grad(&grads).unwrap()));
    let expected = [
        (0.0, 0.0),
        (0.0, 0.0),
        (0.0, 0.5),
        (100.0, 1.0),
        (1e30, 1.0),
    ];
    for ((y, slope), (expected_y, expected_slope)) in found.zip(expected) {
        assert!(
            (y - expected_y).abs() <= 1e-6 * expected_y.abs() + 1e-40,
            "{y}"
        );
        assert!((slope - expected_slope).abs() < 1e-6, "{slope}");
    }
}

#[test]
fn gradients_are_the_same_every_time() {
    let gradients = || {
        let (x, _) = leaves(random::<3>([2, 1500, 96], 1), DType::F32);
        let (gate, _) = leaves(random::<3>([2, 1500, 96], 2), DType::F32);
        let [weight, a_log, dt_bias] =
            [3, 4, 5].map(|seed| leaves(random::<1>([96], seed), DType::F32).0);
        let normed = gated_rms_norm(x.clone(), gate, weight.clone(), EPSILON);
        let decay = decay_gate(normed, a_log.clone(), dt_bias.clone());
        let grads = decay.sum().backward();
        [&weight, &a_log, &dt_bias].map(|leaf| leaf.grad(&grads).unwrap().into_data())
    };
    assert_eq!(gradients(), gradients());
}
