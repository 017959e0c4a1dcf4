//! Rotary embeddings against the reference.

mod support;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_tree_attn::{RopeConfig, RopeError, reference, rope, try_rope};
use proptest::prelude::*;
use support::{computes_in, device, n_cases, random, reference_device, relative_error};

type Rope = fn(Tensor<4>, Tensor<2, Int>, &RopeConfig) -> Tensor<4>;

/// Output and gradient of `x [2, 5, N, D]`, rounded to `input_dtype` and computed in `dtype`.
fn run(
    function: Rope,
    positions: &[i64],
    config: &RopeConfig,
    seed: u64,
    [input_dtype, dtype]: [DType; 2],
    device: Device,
) -> [Tensor<4>; 2] {
    let rows = positions.len() / 2;
    let tensor = |seed| random([2, 5, rows, 8], seed, input_dtype, &device).cast(dtype);
    let ids = Tensor::from_data(TensorData::new(positions.to_vec(), [2, rows]), &device);
    let x = Tensor::from_inner(tensor(seed)).require_grad();
    let output = function(x.clone(), ids, config);
    let weight = Tensor::from_inner(tensor(seed ^ 1));
    let gradients = (output.clone() * weight).sum().backward();
    [output.inner(), x.grad(&gradients).unwrap()]
}

fn compare(
    positions: &[i64],
    config: &RopeConfig,
    seed: u64,
    dtype: DType,
    tolerance: f64,
) -> Result<(), TestCaseError> {
    if !computes_in(dtype) {
        return Ok(());
    }
    let dtypes = [dtype, DType::F64];
    let device_of_reference = reference_device();
    let exact = run(
        reference::rope,
        positions,
        config,
        seed,
        dtypes,
        device_of_reference,
    );
    let ours = run(rope, positions, config, seed, [dtype, dtype], device());
    for (name, (ours, exact)) in ["output", "gradient"].iter().zip(ours.iter().zip(&exact)) {
        prop_assert_eq!(ours.dtype(), dtype);
        let error = relative_error(ours, exact);
        prop_assert!(
            error <= tolerance,
            "{name}: relative error {error:e} > {tolerance:e}"
        );
    }
    Ok(())
}

fn settings() -> impl Strategy<Value = (Vec<i64>, RopeConfig, u64)> {
    let config = (
        10.0..1e6f64,
        prop::option::of((1..=4usize).prop_map(|half| 2 * half)),
    )
        .prop_map(|(theta, rotary_dim)| RopeConfig { theta, rotary_dim });
    let positions = (1..20usize).prop_flat_map(|n| prop::collection::vec(0..2000i64, 2 * n));
    (positions, config, any::<u64>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: n_cases(64), ..ProptestConfig::default() })]

    #[test]
    fn f64_equals_reference((positions, config, seed) in settings()) {
        compare(&positions, &config, seed, DType::F64, 1e-13)?;
    }

    /// Angles of up to 2000 are rounded to f32: 2000 * 2^-24 = 1.2e-4.
    #[test]
    fn f32_equals_reference((positions, config, seed) in settings()) {
        compare(&positions, &config, seed, DType::F32, 2e-4)?;
    }

    /// The result is rounded to bf16: 2^-9 at most.
    #[test]
    fn bf16_equals_reference((positions, config, seed) in settings()) {
        compare(&positions, &config, seed, DType::BF16, 4e-3)?;
    }

    /// The result is rounded to f16 (2^-12 at most), angles to f32.
    #[test]
    fn f16_equals_reference((positions, config, seed) in settings()) {
        compare(&positions, &config, seed, DType::F16, 7e-4)?;
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let device = device();
    let x = Tensor::<4>::zeros([1, 2, 3, 6], &device);
    let ids = |rows| Tensor::<2, Int>::zeros([1, rows], &device);
    let refuse = |ids, theta, rotary_dim| {
        try_rope(x.clone(), ids, &RopeConfig { theta, rotary_dim }).unwrap_err()
    };
    for rotary_dim in [0, 3, 8] {
        let error = RopeError::RotaryDim {
            rotary_dim,
            head_dim: 6,
        };
        assert_eq!(refuse(ids(3), 1e4, Some(rotary_dim)), error);
    }
    for theta in [0.0, -1.0, f64::INFINITY] {
        assert_eq!(refuse(ids(3), theta, None), RopeError::Theta { theta });
    }
    assert_eq!(
        refuse(ids(4), 1e4, None).to_string(),
        "rope: position_ids have shape [1, 4], expected [1, 3] ([B, N] of x)"
    );
}

#[test]
#[should_panic(expected = "rope: rotary_dim is 3")]
fn the_plain_function_panics_with_the_text_of_the_error() {
    let device = device();
    let config = RopeConfig {
        theta: 1e4,
        rotary_dim: Some(3),
    };
    rope(
        Tensor::zeros([1, 1, 1, 4], &device),
        Tensor::zeros([1, 1], &device),
        &config,
    );
}
