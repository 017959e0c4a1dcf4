//! Compares norms and the gated activation with their definitions in f64, values and gradients.

use crate::support::{assert_close, bits, device, exact, in_each_dtype, numbers, rounding, widest};
use burn::tensor::{DType, Tensor, TensorData};
use burn_tree_nn::{rms_norm, swiglu, zero_centered_rms_norm};

const EPSILON: f64 = 1e-6;

/// Rows of one number, of an odd number, of a few vectors; rows wider than 256 units with 32
/// numbers each.
fn norm_equals_its_definition(dtype: DType) {
    for shape in [[1, 1, 1], [2, 15, 7], [3, 5, 48], [1, 3, 9216]] {
        compare_norm(shape, dtype, dtype);
    }
}

/// Rows of a head, of a model, with a weight in f32; more of them than blocks in which the gradient
/// of the weight is summed.
fn norm_of_a_model_equals_its_definition(dtype: DType) {
    for shape in [[2, 700, 128], [1, 9, 1024]] {
        compare_norm(shape, dtype, DType::F32);
    }
}

in_each_dtype!(norm_equals_its_definition: F64 F32 F16 BF16);
in_each_dtype!(norm_of_a_model_equals_its_definition: F64 F32 F16 BF16);

type Norm = fn(Tensor<3>, Tensor<1>, f64) -> Tensor<3>;
/// A norm, its definition, and the most by which weights between -1 and 1 scale.
const NORMS: [(Norm, Norm, f64); 2] = [
    (rms_norm, rms_norm::reference::rms_norm, 1.0),
    (
        zero_centered_rms_norm,
        rms_norm::reference::zero_centered_rms_norm,
        2.0,
    ),
];

fn compare_norm(shape: [usize; 3], dtype: DType, weight_dtype: DType) {
    for norm in NORMS {
        compare_norms(norm, shape, dtype, weight_dtype);
    }
}

fn compare_norms(
    (norm, definition, scale): (Norm, Norm, f64),
    shape: [usize; 3],
    dtype: DType,
    weight_dtype: DType,
) {
    let [a, b, width] = shape;
    let x = numbers(shape, 1, dtype);
    let weight = numbers([width], 2, weight_dtype);
    let factors = numbers(shape, 3, dtype).detach();
    let found = norm(x.clone(), weight.clone(), EPSILON);
    assert_eq!(found.dtype(), dtype);
    let (exact_x, exact_weight) = (exact(&x), exact(&weight));
    let expected = definition(exact_x.clone(), exact_weight.clone(), EPSILON);
    // Rounded as normalised value and as product with the weight; the sum of squares is one of
    // `width` terms in at least f32.
    let once = rounding(dtype);
    let sum = (width as f64).sqrt() / 4.0 * once.min(rounding(DType::F32));
    assert_close(found.clone(), expected.clone(), scale * (8.0 * once + sum));
    let found = (found * factors.clone()).sum().backward();
    let expected = (expected * exact(&factors)).sum().backward();
    // 1 / rms is at most 2, except for a single number.
    let (found_x, expected_x) = (x.grad(&found).unwrap(), exact_x.grad(&expected).unwrap());
    assert_eq!(found_x.dtype(), dtype);
    assert_close(found_x, expected_x, scale * (16.0 * once + 2.0 * sum));
    // A sum of products of at most 2 in size, half of which cancel.
    let found = weight.grad(&found).unwrap();
    assert_eq!(found.dtype(), weight_dtype);
    let once = once.max(rounding(weight_dtype));
    let tolerance = (4.0 + 8.0 * ((a * b) as f64).sqrt()) * once;
    assert_close(found, exact_weight.grad(&expected).unwrap(), tolerance);
}

/// One plus a zero-centred weight must not be rounded before the product: in a dtype whose numbers
/// near one are 2^-7 apart, products with `1 + 2^-9` differ from those with one.
#[test]
fn a_weight_centred_on_zero_keeps_its_digits() {
    if !device().supports_dtype(DType::BF16) {
        return;
    }
    let x = numbers([40, 64], 1, DType::F32).cast(DType::BF16);
    let norm = |weight: f32| {
        let weight = Tensor::<1>::full([64], weight, (&device(), DType::F32));
        bits(zero_centered_rms_norm(x.clone(), weight, EPSILON))
    };
    assert_ne!(norm(0.0), norm(f32::exp2(-9.0)));
}

/// Padding may be a row of zeros: no division by zero.
#[test]
fn a_row_of_zeros_stays_zero() {
    let x = Tensor::<2>::zeros([2, 8], &device()).require_grad();
    let weight = numbers([8], 1, DType::F32);
    let y = rms_norm(x.clone(), weight, EPSILON);
    assert_eq!(y.clone().abs().max().into_scalar::<f32>(), 0.0);
    let gradients = y.sum().backward();
    let gradient = x.grad(&gradients).unwrap().into_data();
    assert!(gradient.iter::<f32>().all(f32::is_finite));
}

#[test]
fn gradients_of_the_norm_are_the_same_every_time() {
    let gradients = || {
        let x = numbers([3000, 96], 1, DType::F32);
        let weight = numbers([96], 2, DType::F32);
        let factors = numbers([3000, 96], 3, DType::F32).detach();
        let gradients = (rms_norm(x.clone(), weight.clone(), EPSILON) * factors)
            .sum()
            .backward();
        [
            bits(x.grad(&gradients).unwrap()),
            bits(weight.grad(&gradients).unwrap()),
        ]
    };
    assert!(gradients() == gradients());
}

fn activation_equals_its_definition(dtype: DType) {
    let rounding = rounding(dtype);
    for shape in [[3, 7, 40], [1, 1, 1], [2, 3, 5], [3, 257, 96]] {
        // A transposed operand is not contiguous.
        let [a, b, c] = shape;
        let gate = (numbers([a, c, b], 1, dtype).swap_dims(1, 2).detach() * 3.0).require_grad();
        let up = numbers(shape, 2, dtype);
        let factors = numbers(shape, 3, dtype).detach();
        let found = swiglu(gate.clone(), up.clone());
        assert_eq!(found.dtype(), dtype);
        let (exact_gate, exact_up) = (exact(&gate), exact(&up));
        let expected = swiglu::reference::swiglu(exact_gate.clone(), exact_up.clone());
        assert_close(found.clone(), expected.clone(), 4.0 * rounding);
        let found = (found * factors.clone()).sum().backward();
        let expected = (expected * exact(&factors)).sum().backward();
        for (tensor, exact) in [(&gate, &exact_gate), (&up, &exact_up)] {
            let pair = (tensor.grad(&found).unwrap(), exact.grad(&expected).unwrap());
            assert_eq!(pair.0.dtype(), dtype);
            assert_close(pair.0, pair.1, 8.0 * rounding);
        }
    }
}

in_each_dtype!(activation_equals_its_definition: F64 F32 F16 BF16);

#[test]
fn activation_of_extreme_gates() {
    let dtypes = [DType::F32, widest()];
    for dtype in dtypes {
        let gate = Tensor::<1>::from_data(
            TensorData::from([-1e30f64, -1e4, -100.0, 0.0, 100.0, 1e30]),
            (&device(), dtype),
        )
        .require_grad();
        let up = Tensor::<1>::ones([6], (&device(), dtype)).require_grad();
        let y = swiglu(gate.clone(), up.clone());
        assert_close(
            y.clone(),
            Tensor::from_data(
                TensorData::from([0.0f64, 0.0, 0.0, 0.0, 100.0, 1e30]),
                (&device(), dtype),
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
