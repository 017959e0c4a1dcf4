//! Compares row gathers and grouped products with their definitions, values and gradients.

use std::sync::Arc;

use crate::support::{assert_close, bits, device, exact, in_each_dtype, numbers, rounding, widest};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_tree_nn::{GatherPlan, gather_rows, grouped_linear};
use burn_tree_nn::{gather_rows as gather, grouped_linear as grouped};
use proptest::prelude::*;

fn gather_equals_select(indices: &[u32], rows: usize, width: usize, dtype: DType) {
    let count = indices.len();
    let plan = Arc::new(GatherPlan::new(indices.to_vec(), rows).unwrap());
    let x = numbers([rows, width], 1, dtype);
    let coefficients = numbers([count, width], 2, dtype).detach();
    let found = gather_rows(x.clone(), &plan);
    assert_eq!(found.dtype(), dtype);
    let found_grads = (found.clone() * coefficients.clone()).sum().backward();

    let ids: Vec<i32> = indices.iter().map(|&index| index as i32).collect();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [count]), &Device::flex());
    let exact_x = exact(&x);
    let expected = gather::reference::gather_rows(exact_x.clone(), ids);
    let expected_grads = (expected.clone() * exact(&coefficients)).sum().backward();
    assert_close(found, expected, 0.0);
    // One rounding of the sum, and the roundings of `count` terms in at least f32.
    let rounding = rounding(dtype);
    let sum = rounding.min(2f64.powi(-24)) * count as f64;
    let grad = x.grad(&found_grads).unwrap();
    assert_eq!(grad.dtype(), dtype);
    assert_close(
        grad,
        exact_x.grad(&expected_grads).unwrap(),
        2.0 * rounding + sum,
    );
}

/// Fewer cases on devices that tune a matrix product for every shape.
fn cases() -> ProptestConfig {
    ProptestConfig::with_cases(if tree_training_devices::is_cubecl() {
        6
    } else {
        64
    })
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn gathers_equal_selections(
        (rows, indices) in (1usize..9).prop_flat_map(|rows| {
            (Just(rows), prop::collection::vec(0..rows as u32, 1..40))
        }),
        width in 1usize..20,
    ) {
        gather_equals_select(&indices, rows, width, widest());
    }

    #[test]
    fn groups_equal_rows_one_by_one(
        sizes in prop::collection::vec(prop_oneof![Just(0usize), 0usize..6], 1..6),
        input in 1usize..9,
        output in 1usize..9,
    ) {
        let rows: usize = sizes.iter().sum();
        prop_assume!(rows > 0);
        let dtype = widest();
        let x = numbers([rows, input], 3, dtype);
        let weight = numbers([sizes.len(), input, output], 4, dtype);
        let coefficients = numbers([rows, output], 5, dtype).detach();

        let found = grouped_linear(x.clone(), weight.clone(), &Arc::new(sizes.clone()));
        let found_grads = (found.clone() * coefficients.clone()).sum().backward();
        let (exact_x, exact_weight) = (exact(&x), exact(&weight));
        let expected =
            grouped::reference::grouped_linear(exact_x.clone(), exact_weight.clone(), &sizes);
        let expected_grads = (expected.clone() * exact(&coefficients)).sum().backward();

        // Sums of at most 9 products.
        let tolerance = 16.0 * rounding(dtype);
        assert_close(found, expected, tolerance);
        assert_close(
            x.grad(&found_grads).unwrap(),
            exact_x.grad(&expected_grads).unwrap(),
            tolerance,
        );
        let grad = weight.grad(&found_grads).unwrap();
        assert_close(grad.clone(), exact_weight.grad(&expected_grads).unwrap(), tolerance);
        for (group, &size) in sizes.iter().enumerate() {
            if size == 0 {
                let part = grad.clone().slice_dim(0, group..group + 1);
                prop_assert_eq!(part.abs().max().into_scalar::<f64>(), 0.0);
            }
        }
    }
}

/// A table of which one row is read a thousand times, like a line break, one a hundred times, and
/// many never.
fn gathers_with_long_sums(dtype: DType) {
    let indices: Vec<u32> = (0..1500)
        .map(|i| match i % 15 {
            0..10 => 7,
            10 => 2999,
            _ => (i * 37 % 3000) as u32,
        })
        .collect();
    gather_equals_select(&indices, 3000, 72, dtype);
}

in_each_dtype!(gathers_with_long_sums: F64 F32 F16 BF16);

#[test]
fn gradients_of_gathers_are_the_same_every_time() {
    let indices: Vec<u32> = (0..5000).map(|i| (i * i % 7) as u32).collect();
    let plan = Arc::new(GatherPlan::new(indices, 7).unwrap());
    let gradient = || {
        let x = numbers([7, 33], 1, DType::F32);
        let factors = numbers([5000, 33], 2, DType::F32).detach();
        let gradients = (gather_rows(x.clone(), &plan) * factors).sum().backward();
        bits(x.grad(&gradients).unwrap())
    };
    assert!(gradient() == gradient());
}

/// Ten thousand reads of one row: a running bf16 sum would stop growing at 256, one in f16 at
/// 2048.
#[test]
fn gradients_of_gathered_rows_are_summed_in_f32() {
    // 10,000, rounded once at the end.
    for (dtype, sum) in [(DType::BF16, 9984.0), (DType::F16, 10_000.0)] {
        if !tree_training_devices::computes_in(dtype) {
            continue;
        }
        let plan = Arc::new(GatherPlan::new(vec![1; 10_000], 3).unwrap());
        let x = Tensor::<2>::ones([3, 2], (&device(), dtype)).require_grad();
        let gradients = gather_rows(x.clone(), &plan).sum().backward();
        let grad = x.grad(&gradients).unwrap();
        assert_eq!(grad.dtype(), dtype);
        let found: Vec<f32> = grad.into_data().iter::<f32>().collect();
        assert_eq!(found, [0.0, 0.0, sum, sum, 0.0, 0.0]);
    }
}
