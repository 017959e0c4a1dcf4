//! Rotary embeddings against the reference.

mod support;

use burn::nn::RotaryEncodingConfig;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_tree_attn::{
    Llama3Scaling, RopeConfig, RopePairing, RopeScaling, YarnScaling, reference, rope, try_rope,
};
use proptest::prelude::*;
use support::{computes_in, device, is_cubecl, n_cases, random, reference_device, relative_error};

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

fn scalings() -> impl Strategy<Value = RopeScaling> {
    let lengths = (1.0..40.0f64, 8.0..2000.0f64);
    let llama3 = lengths.clone().prop_map(|(factor, length)| {
        RopeScaling::Llama3(Llama3Scaling {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: length,
        })
    });
    let yarn = (lengths, any::<bool>()).prop_map(|((factor, length), truncate)| {
        RopeScaling::Yarn(YarnScaling {
            factor,
            original_max_position_embeddings: length,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate,
            attention_factor: YarnScaling::default_attention_factor(factor),
        })
    });
    prop_oneof![
        Just(RopeScaling::None),
        (1.0..40.0f64).prop_map(|factor| RopeScaling::Linear { factor }),
        llama3,
        yarn,
    ]
}

fn settings() -> impl Strategy<Value = (Vec<i64>, RopeConfig, u64)> {
    let config = (
        10.0..1e6f64,
        prop::option::of((1..=4usize).prop_map(|half| 2 * half)),
        prop_oneof![Just(RopePairing::Halves), Just(RopePairing::Interleaved)],
        scalings(),
    )
        .prop_map(|(theta, rotary_dim, pairing, scaling)| RopeConfig {
            theta,
            rotary_dim,
            pairing,
            scaling,
        });
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

/// Values and gradients of Burn's own module, which takes every row's index for its position.
#[test]
fn interleaved_pairs_are_those_of_burn() {
    const ROWS: usize = 50;
    let device = device();
    for (head_dim, theta) in [(2, 1e4), (6, 1e4), (64, 1e6), (128, 1e4)] {
        let tensor = |seed| random([2, 3, ROWS, head_dim], seed, DType::F32, &device);
        let weight: Tensor<4> = Tensor::from_inner(tensor(2));
        let results = |function: &dyn Fn(Tensor<4>) -> Tensor<4>| {
            let x = Tensor::from_inner(tensor(1)).require_grad();
            let output = function(x.clone());
            let gradients = (output.clone() * weight.clone()).sum().backward();
            [output.inner(), x.grad(&gradients).unwrap()]
        };
        let module = RotaryEncodingConfig::new(ROWS, head_dim)
            .with_theta(theta as f32)
            .init(&device.clone().autodiff());
        let burn = results(&|x| module.forward(x));
        let of_pairing = |pairing| {
            let ids = Tensor::<1, Int>::arange(0..ROWS as i64, &device);
            let ids = ids.reshape([1, ROWS]).expand([2, ROWS]);
            let config = RopeConfig {
                pairing,
                ..RopeConfig::new(theta)
            };
            results(&|x| rope(x, ids.clone(), &config))
        };
        let distances = |pairing| {
            let ours = of_pairing(pairing);
            [0, 1].map(|result| relative_error(&ours[result], &burn[result]))
        };
        // Burn's frequencies are powers in f32, and its module multiplies by a matrix, which CUDA
        // rounds to TF32: 2^-11.
        let bar = if is_cubecl() { 5e-4 } else { 2e-5 };
        for distance in distances(RopePairing::Interleaved) {
            assert!(distance < bar, "{head_dim} dimensions: {distance:e}");
        }
        // One pair is the same either way.
        for distance in distances(RopePairing::Halves) {
            assert!(distance > 0.1 || head_dim == 2, "{head_dim}: {distance:e}");
        }
    }
}

/// With the dimensions in another order, one pairing is the other: to the last bit on the CPU.
#[test]
fn pairings_differ_in_the_order_of_dimensions_only() {
    let device = device();
    let ids = [[5i32, 0, 700, 31, 5], [1, 2, 3, 1999, 0]];
    // Vectors of every width that kernels load, and dimensions that stay as they are.
    for (head_dim, rotary_dim) in [
        (2, 2),
        (9, 6),
        (10, 4),
        (12, 8),
        (24, 16),
        (64, 32),
        (128, 128),
    ] {
        let half = rotary_dim / 2;
        // Where the elements of interleaved pairs are if these are halves.
        let order = (0..head_dim).map(|dimension| match dimension {
            rest if rest >= rotary_dim => rest,
            element => element / 2 + element % 2 * half,
        });
        let order: Vec<i32> = order.map(|dimension| dimension as i32).collect();
        let order = Tensor::<1, Int>::from_ints(order.as_slice(), &device);
        let dtypes = [DType::F64, DType::F32, DType::F16, DType::BF16];
        for dtype in dtypes.into_iter().filter(|&it| computes_in(it)) {
            let results = |pairing| {
                let config = RopeConfig {
                    rotary_dim: Some(rotary_dim),
                    pairing,
                    ..RopeConfig::new(1e4)
                };
                let ids = Tensor::<2, Int>::from_ints(ids, &device);
                let tensor = |seed| {
                    let halves = random([2, 5, 5, head_dim], seed, dtype, &device);
                    Tensor::from_inner(match pairing {
                        RopePairing::Halves => halves,
                        RopePairing::Interleaved => halves.select(3, order.clone()),
                    })
                };
                let x = tensor(1).require_grad();
                let output = rope(x.clone(), ids, &config);
                let gradients = (output.clone() * tensor(2)).sum().backward();
                [output.inner(), x.grad(&gradients).unwrap()]
            };
            let halves = results(RopePairing::Halves).map(|it| it.select(3, order.clone()));
            let interleaved = results(RopePairing::Interleaved);
            for (ours, expected) in interleaved.into_iter().zip(halves) {
                let message = format!("{rotary_dim} of {head_dim}, {dtype:?}");
                if is_cubecl() {
                    // A compiler may contract a product and a sum in one of them.
                    let bar = if dtype == DType::F64 { 1e-15 } else { 1e-3 };
                    let bar = if dtype == DType::F32 { 1e-6 } else { bar };
                    let error = relative_error(&ours, &expected);
                    assert!(error < bar, "{message}: {error:e}");
                    continue;
                }
                let [ours, expected] = [ours, expected].map(Tensor::into_data);
                assert_eq!(ours, expected, "{message}");
            }
        }
    }
}

/// On the CPU, products and sums in the order of the formula.
#[cfg(feature = "flex")]
#[test]
fn halves_are_the_formula_to_the_last_bit() {
    let device = Device::flex();
    let (rows, rotary_dim, theta) = (7, 6, 1e4f64);
    let x = random([1, 2, rows, 8], 3, DType::F32, &device);
    let positions = [0i64, 1, 1, 2, 900, 17, 1999];
    let ids = TensorData::new(positions.to_vec(), [1, rows]);
    let config = RopeConfig {
        rotary_dim: Some(rotary_dim),
        ..RopeConfig::new(theta)
    };
    let ours = rope(x.clone(), Tensor::from_data(ids, &device), &config);
    let mut expected = x.into_data().try_to_vec::<f32>().unwrap();
    for (row, x) in expected.chunks_exact_mut(8).enumerate() {
        for pair in 0..rotary_dim / 2 {
            let frequency = theta.powf(-2.0 * pair as f64 / rotary_dim as f64) as f32;
            let (sin, cos) = (positions[row % rows] as f32 * frequency).sin_cos();
            let (a, b) = (x[pair], x[pair + rotary_dim / 2]);
            x[pair] = a * cos - b * sin;
            x[pair + rotary_dim / 2] = b * cos + a * sin;
        }
    }
    assert_eq!(ours.into_data().try_to_vec::<f32>().unwrap(), expected);
}

#[test]
fn wrong_arguments_are_refused() {
    let device = device();
    let x = Tensor::<4>::zeros([1, 2, 3, 6], &device);
    let ids = |rows| Tensor::<2, Int>::zeros([1, rows], &device);
    let refuse = |ids, theta, rotary_dim| {
        let config = RopeConfig {
            rotary_dim,
            ..RopeConfig::new(theta)
        };
        try_rope(x.clone(), ids, &config).unwrap_err()
    };
    for rotary_dim in [0, 3] {
        assert_eq!(
            refuse(ids(3), 1e4, Some(rotary_dim)).to_string(),
            format!("rope: rotary_dim is {rotary_dim}, expected a positive even number")
        );
    }
    assert_eq!(
        refuse(ids(3), 1e4, Some(8)).to_string(),
        "rope: x has shape [1, 2, 3, 6], expected head dimension at least 8 (rotary_dim)"
    );
    for theta in [0.0, -1.0, f64::INFINITY] {
        assert_eq!(
            refuse(ids(3), theta, None).to_string(),
            format!("rope: theta is {theta}, expected a positive finite number")
        );
    }
    assert_eq!(
        refuse(ids(4), 1e4, None).to_string(),
        "rope: position_ids has shape [1, 4], expected [1, 3] ([B, N] of x)"
    );
}

#[test]
#[should_panic(expected = "rope: rotary_dim is 3")]
fn the_plain_function_panics_with_the_text_of_the_error() {
    let device = device();
    let config = RopeConfig {
        rotary_dim: Some(3),
        ..RopeConfig::new(1e4)
    };
    rope(
        Tensor::zeros([1, 1, 1, 4], &device),
        Tensor::zeros([1, 1], &device),
        &config,
    );
}
