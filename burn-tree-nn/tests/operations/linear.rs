//! Products of linear layers against their definition, values and gradients.

use crate::support::{
    assert_close, bits, device, exact, in_each_dtype, numbers, random, relative_error, rounding,
    widest,
};
use burn::tensor::{DType, Tensor};
use burn_tree_nn::linear::reference;
use burn_tree_nn::{linear, linears, try_linear, try_linears};
use proptest::prelude::*;

/// Fewer where every shape tunes another matrix product.
fn cases() -> ProptestConfig {
    let cases = match tree_training_devices::is_cubecl() {
        true => 6,
        false => 64,
    };
    ProptestConfig::with_cases(cases)
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn one_weight_equals_the_definition(
        batch in 1usize..4,
        rows in 1usize..9,
        input in 1usize..9,
        output in 1usize..9,
    ) {
        let dtype = widest();
        let x = numbers([batch, rows, input], 1, dtype);
        let weight = numbers([input, output], 2, dtype);
        let coefficients = numbers([batch, rows, output], 3, dtype).detach();
        let found = linear(x.clone(), weight.clone());
        let found_grads = (found.clone() * coefficients.clone()).sum().backward();

        let (exact_x, exact_weight) = (exact(&x), exact(&weight));
        let flat = exact_x.clone().reshape([batch * rows, input]);
        let expected = reference::linear(flat, exact_weight.clone());
        let expected = expected.reshape([batch, rows, output]);
        let expected_grads = (expected.clone() * exact(&coefficients)).sum().backward();
        // Sums of at most 24 products.
        let tolerance = 48.0 * rounding(dtype);
        assert_close(found, expected, tolerance);
        assert_close(
            x.grad(&found_grads).unwrap(),
            exact_x.grad(&expected_grads).unwrap(),
            tolerance,
        );
        assert_close(
            weight.grad(&found_grads).unwrap(),
            exact_weight.grad(&expected_grads).unwrap(),
            tolerance,
        );
    }

    /// Some outputs may not be part of the loss, and some tensors may be frozen.
    #[test]
    fn several_weights_equal_one_by_one(
        rows in 1usize..9,
        input in 1usize..9,
        widths in [1usize..9, 1usize..9, 1usize..9],
        used in [any::<bool>(), any::<bool>(), any::<bool>()],
        frozen in [any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()],
    ) {
        prop_assume!(used.contains(&true));
        // Something is left to be trained.
        prop_assume!(!frozen[0] || (0..3).any(|index| used[index] && !frozen[index + 1]));
        let dtype = widest();
        let leaf = |shape, seed, frozen| match frozen {
            true => numbers(shape, seed, dtype).detach(),
            false => numbers(shape, seed, dtype),
        };
        let run = |together: bool| {
            let x = leaf([rows, input], 1, frozen[0]);
            let weights: [Tensor<2>; 3] = std::array::from_fn(|index| {
                leaf([input, widths[index]], 2 + index, frozen[index + 1])
            });
            let outputs = match together {
                true => linears(x.clone(), weights.clone()),
                false => weights.clone().map(|weight| linear(x.clone(), weight)),
            };
            let loss = (0..3)
                .filter(|&index| used[index])
                .map(|index| {
                    let coefficients = numbers([rows, widths[index]], 7 + index, dtype).detach();
                    (outputs[index].clone() * coefficients).sum()
                })
                .reduce(|sum, next| sum + next)
                .expect("one is used");
            let gradients = loss.backward();
            let [first, second, third] = weights;
            let leaves = [x, first, second, third];
            (outputs, leaves.map(|leaf| leaf.grad(&gradients)))
        };
        let ((found, found_grads), (expected, expected_grads)) = (run(true), run(false));
        let tolerance = 48.0 * rounding(dtype);
        for (found, expected) in found.into_iter().zip(expected) {
            assert_close(found, expected, tolerance);
        }
        for (found, expected) in found_grads.into_iter().zip(expected_grads) {
            prop_assert_eq!(found.is_some(), expected.is_some());
            if let (Some(found), Some(expected)) = (found, expected) {
                assert_close(found, expected, tolerance);
            }
        }
    }
}

/// Rows, inputs and outputs: single numbers, less and more than tiles of 128 x 256 x 64, whole
/// tiles, and products that end in narrow tiles or are split along the sums.
const SHAPES: [[usize; 3]; 9] = [
    [1, 8, 8],
    [63, 64, 8],
    [127, 72, 264],
    [128, 256, 256],
    [129, 72, 264],
    [264, 1000, 72],
    [1000, 64, 520],
    [2600, 136, 520],
    [4096, 1024, 1024],
];

/// Numbers whose sums do not cancel each other more than by chance.
fn drawn(shape: [usize; 2], seed: usize, dtype: DType) -> Tensor<2> {
    let data = random(shape, seed as u64).into_data().convert_dtype(dtype);
    Tensor::from_data(data, (&device().inner(), dtype))
}

/// Views: rows that begin elsewhere, rows with gaps between them, columns as rows.
fn views(rows: usize, columns: usize, seed: usize, dtype: DType) -> [Tensor<2>; 4] {
    let numbers = |shape: [usize; 2]| drawn(shape, seed, dtype);
    let whole = numbers([rows, columns]);
    let longer = numbers([rows + 3, columns]);
    let wider = numbers([rows, columns + 24]);
    let turned = numbers([columns, rows]);
    [
        whole,
        longer.slice_dim(0, 3..rows + 3),
        wider.slice_dim(1, 8..columns + 8),
        turned.transpose(),
    ]
}

/// The numbers of tensors are those of `dtype`; sums have one rounding to it and those of f32.
fn shapes_and_views_are_multiplied(dtype: DType) {
    let largest = match tree_training_devices::is_cubecl() {
        true => SHAPES.len(),
        // Nothing depends on the shape elsewhere.
        false => 6,
    };
    for (index, [rows, input, output]) in SHAPES.into_iter().enumerate().take(largest) {
        let inputs = views(rows, input, 1, dtype);
        let weights = views(input, output, 2, dtype);
        let grad = drawn([rows, output], 3, dtype);
        // All views of small products, one pair of large ones.
        let pairs = (0..inputs.len()).flat_map(|x| (0..weights.len()).map(move |w| [x, w]));
        let pairs = pairs.filter(|&[x, w]| rows * output < 100_000 || x == w && x == index % 4);
        for [x, weight] in pairs {
            let leaf = |view: &Tensor<2>| view.clone().autodiff().require_grad();
            check_product(leaf(&inputs[x]), leaf(&weights[weight]), grad.clone());
        }
    }
}

in_each_dtype!(shapes_and_views_are_multiplied: F64 F32 F16 BF16);

fn check_product(x: Tensor<2>, weight: Tensor<2>, grad: Tensor<2>) {
    let dtype = x.dtype();
    let run = || {
        let y = linear(x.clone(), weight.clone());
        let gradients = (y.clone() * grad.clone().autodiff()).sum().backward();
        [
            y,
            x.grad(&gradients).unwrap(),
            weight.grad(&gradients).unwrap(),
        ]
    };
    let (found, again) = (run(), run());
    let (exact_x, exact_weight, exact_grad) = (exact(&x), exact(&weight), exact(&grad));
    let expected = [
        exact_x.clone().matmul(exact_weight.clone()),
        exact_grad.clone().matmul(exact_weight.transpose()),
        exact_x.transpose().matmul(exact_grad),
    ];
    let cuda_f32 = dtype == DType::F32 && tree_training_devices::is_cubecl();
    let result = match cuda_f32 {
        // CUDA cuts the operands of Burn's f32 products to TF32.
        true => 2f64.powi(-9),
        false => rounding(dtype),
    };
    // Sums are in at least f32; their rounding errors add up like the steps of a random walk.
    let sums = rounding(dtype).min(2f64.powi(-24));
    let longest = x.dims()[0].max(x.dims()[1]).max(weight.dims()[1]);
    let tolerance = 2.0 * result + 2.0 * sums * (longest as f64).sqrt();
    for ((found, again), expected) in found.into_iter().zip(again).zip(expected) {
        assert_eq!(found.dtype(), dtype);
        let error = relative_error(&found, &expected);
        assert!(
            error <= tolerance,
            "{:?} {:?}: {error:.1e}",
            x.dims(),
            weight.dims()
        );
        // Gradients and results of several runs have the same bits.
        assert!(bits(found) == bits(again));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let x = numbers([2, 3, 4], 1, DType::F32);
    let weight = |shape| numbers(shape, 2, DType::F32);
    let refused = |weight| try_linear(x.clone(), weight).unwrap_err().to_string();
    assert_eq!(
        refused(weight([5, 6])),
        "linear: weight has shape [5, 6], expected [4, 6] (columns of x)"
    );
    assert_eq!(
        refused(weight([4, 0])),
        "linear: weight has shape [4, 0], expected at least 1 in each dimension"
    );
    let half = weight([4, 6]).cast(DType::F16);
    assert_eq!(
        refused(half.clone()),
        "linear: weight is F16, expected F32, the dtype of x"
    );
    let error = try_linears(x.clone(), [weight([4, 6]), half]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "linears: weight is F16, expected F32, the dtype of x"
    );
}

#[test]
fn no_rows_give_no_rows() {
    let x = Tensor::<2>::empty([0, 4], &device());
    let weight = numbers([4, 6], 1, DType::F32);
    assert_eq!(linear(x.clone(), weight.clone()).dims(), [0, 6]);
    let outputs = linears(x, [weight.clone(), weight]);
    assert_eq!(outputs.map(|output| output.dims()), [[0, 6]; 2]);
}
