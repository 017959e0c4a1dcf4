//! Row gathers and grouped products against their definitions, values and gradients.

use std::sync::Arc;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, Tolerance};
use burn_tree_train::{GatherPlan, gather_rows, grouped_linear};
use burn_tree_train::{gather_rows as gather, grouped_linear as grouped};
use proptest::prelude::*;

fn device() -> Device {
    Device::flex().autodiff()
}

fn numbers<const D: usize>(shape: [usize; D], seed: usize, dtype: DType) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count)
        .map(|index| ((index * 7919 + seed * 104729 + 13) % 1009) as f64 / 504.5 - 1.0)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), (&device(), dtype)).require_grad()
}

fn assert_close<const D: usize>(found: Tensor<D>, expected: Tensor<D>, tolerance: f64) {
    assert_eq!(found.dims(), expected.dims());
    assert_eq!(found.dtype(), expected.dtype());
    found.into_data().convert::<f64>().assert_approx_eq::<f64>(
        &expected.into_data().convert::<f64>(),
        Tolerance::absolute(tolerance),
    );
}

/// The gradient of f64 rows differs by the order of sums only: at most 40 terms of size 1.
const F64_ROUNDING: f64 = 1e-13;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn gather_equals_select(
        (rows, indices) in (1usize..9).prop_flat_map(|rows| {
            (Just(rows), prop::collection::vec(0..rows as u32, 1..40))
        }),
        width in 1usize..20,
    ) {
        let count = indices.len();
        let plan = Arc::new(GatherPlan::new(indices.clone(), rows).unwrap());
        let x = numbers([rows, width], 1, DType::F64);
        let coefficients = numbers([count, width], 2, DType::F64).detach();

        let found = gather_rows(x.clone(), &plan);
        let found_grads = (found.clone() * coefficients.clone()).sum().backward();
        let ids: Vec<i32> = indices.iter().map(|&index| index as i32).collect();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [count]), &device());
        let expected = gather::reference::gather_rows(x.clone(), ids);
        let expected_grads = (expected.clone() * coefficients).sum().backward();

        assert_close(found, expected, 0.0);
        assert_close(
            x.grad(&found_grads).unwrap(),
            x.grad(&expected_grads).unwrap(),
            F64_ROUNDING,
        );
    }

    #[test]
    fn groups_equal_rows_one_by_one(
        sizes in prop::collection::vec(prop_oneof![Just(0usize), 0usize..6], 1..6),
        input in 1usize..9,
        output in 1usize..9,
    ) {
        let rows: usize = sizes.iter().sum();
        prop_assume!(rows > 0);
        let x = numbers([rows, input], 3, DType::F64);
        let weight = numbers([sizes.len(), input, output], 4, DType::F64);
        let coefficients = numbers([rows, output], 5, DType::F64).detach();

        let found = grouped_linear(x.clone(), weight.clone(), &Arc::new(sizes.clone()));
        let found_grads = (found.clone() * coefficients.clone()).sum().backward();
        let expected = grouped::reference::grouped_linear(x.clone(), weight.clone(), &sizes);
        let expected_grads = (expected.clone() * coefficients).sum().backward();

        assert_close(found, expected, F64_ROUNDING);
        assert_close(
            x.grad(&found_grads).unwrap(),
            x.grad(&expected_grads).unwrap(),
            F64_ROUNDING,
        );
        let grad = weight.grad(&found_grads).unwrap();
        assert_close(grad.clone(), weight.grad(&expected_grads).unwrap(), F64_ROUNDING);
        for (group, &size) in sizes.iter().enumerate() {
            if size == 0 {
                let part = grad.clone().slice_dim(0, group..group + 1);
                prop_assert_eq!(part.abs().max().into_scalar::<f64>(), 0.0);
            }
        }
    }
}

/// Ten thousand reads of one row in bf16: a running bf16 sum would stop growing at 256.
#[test]
fn gradients_of_gathered_rows_are_summed_in_f32() {
    let plan = Arc::new(GatherPlan::new(vec![1; 10_000], 3).unwrap());
    let x = Tensor::<2>::ones([3, 2], (&device(), DType::BF16)).require_grad();
    let gradients = gather_rows(x.clone(), &plan).sum().backward();
    let grad = x.grad(&gradients).unwrap();
    assert_eq!(grad.dtype(), DType::BF16);
    let found: Vec<f32> = grad.into_data().iter::<f32>().collect();
    // The sum is rounded to bf16 once at the end.
    let sum = 9984.0;
    assert_eq!(found, [0.0, 0.0, sum, sum, 0.0, 0.0]);
}

#[test]
fn an_index_that_is_no_row_is_named() {
    let error = GatherPlan::new(vec![0, 4], 4).unwrap_err();
    assert_eq!(error.to_string(), "index 1 is 4, but there are 4 rows");
}
