//! Outputs and gradients against the reference, and the same bits twice.

use burn::tensor::{DType, Device, Tensor};
use burn_tree_attn::{Implementation, TreeAttentionOptions, reference, try_tree_attention};
use proptest::prelude::*;

use super::{LAUNCHES, available, bits, case};
use crate::support::{
    Case, cases, computes_in, device, is_cubecl, n_cases, random, reference_device, relative_error,
};

/// Head dimensions of query and key, and of the value.
const HEAD_DIMS: [(usize, usize); 9] = [
    (16, 16),
    (64, 64),
    (80, 80),
    (96, 96),
    (128, 128),
    (256, 256),
    (24, 40),
    (192, 128),
    (9, 7),
];

/// Fills memory of the size of `shape` with NaN and gives it back, for the next tensors to get.
fn poison(shape: [usize; 4], dtype: DType, device: &Device) {
    let nan = (0..4).map(|_| Tensor::<4>::full(shape, f32::NAN, (device, dtype)));
    for tensor in nan.collect::<Vec<_>>() {
        assert!(tensor.into_data().iter::<f32>().all(f32::is_nan));
    }
}

/// Output, and gradients of query, key and value.
fn run(
    case: &Case,
    scale: Option<f64>,
    implementation: Option<Implementation>,
    input_dtype: DType,
    dtype: DType,
    device: &Device,
) -> [Tensor<4>; 4] {
    let mask = case.mask(device);
    let [b, n, m] = [mask.batch_size(), mask.n_queries(), mask.n_keys()];
    let (heads, d, dv) = (case.kv_heads * case.group, case.head_dim, case.value_dim);
    let tensor =
        |shape, seed| random(shape, case.seed.wrapping_add(seed), input_dtype, device).cast(dtype);
    let leaf = |shape, seed| Tensor::from_inner(tensor(shape, seed)).require_grad();
    let query = leaf([b, heads, n, d], 1);
    let key = leaf([b, case.kv_heads, m, d], 2);
    let value = leaf([b, case.kv_heads, m, dv], 3);
    let weight = Tensor::from_inner(tensor([b, heads, n, dv], 4));
    let mut options = TreeAttentionOptions {
        scale,
        softcap: case.softcap,
        sliding_window: case.sliding_window,
        ..Default::default()
    };
    let inputs = (query.clone(), key.clone(), value.clone());
    let output = match implementation {
        None => reference::tree_attention(inputs.0, inputs.1, inputs.2, &mask, options),
        Some(implementation) => {
            options.implementation = implementation;
            poison([b, heads, n, dv], dtype, device);
            try_tree_attention(inputs.0, inputs.1, inputs.2, &mask, options).unwrap()
        }
    };
    let loss = (output.clone() * weight).sum();
    if implementation.is_some() {
        poison([b, heads, n, d.max(dv)], dtype, device);
        poison([b, case.kv_heads, m, d.max(dv)], dtype, device);
    }
    let gradients = loss.backward();
    let [query, key, value] = [query, key, value].map(|leaf| leaf.grad(&gradients).unwrap());
    [output.inner(), query, key, value]
}

/// Largest relative errors of output and gradients, with their reasons.
fn tolerances(dtype: DType) -> [f64; 2] {
    match dtype {
        // The order of sums.
        DType::F64 => [1e-12, 1e-11],
        // Scores of some unit size, sums over hundreds of keys, exponentials to about 2^-22.
        DType::F32 => [1e-5, 1e-4],
        // Storage in 11 bits (8 bits for bf16), and probabilities in as many where they are factors
        // of matrix instructions.
        _ => [1e-2, 1e-2],
    }
}

fn compare(case: &Case, dtype: DType) -> Result<(), TestCaseError> {
    compare_scaled(case, None, dtype)
}

fn compare_scaled(case: &Case, scale: Option<f64>, dtype: DType) -> Result<(), TestCaseError> {
    let device = device();
    if !computes_in(dtype) {
        return Ok(());
    }
    let _launches = LAUNCHES.read();
    let exact = run(case, scale, None, dtype, DType::F64, &reference_device());
    let [forward, backward] = tolerances(dtype);
    let rows: usize = case.layouts().iter().map(|layout| layout.len()).sum();
    for implementation in available(dtype, case.head_dim, case.value_dim) {
        // One operation of Burn after another: minutes on a software Vulkan.
        if implementation == Implementation::Generic && is_cubecl() && rows > 64 {
            continue;
        }
        let ours = run(case, scale, Some(implementation), dtype, dtype, &device);
        let names = ["output", "query", "key", "value"];
        for (index, (ours, exact)) in ours.iter().zip(&exact).enumerate() {
            let error = relative_error(ours, exact);
            let tolerance = if index == 0 { forward } else { backward };
            prop_assert!(
                error <= tolerance,
                "{implementation:?}, {dtype:?}, {}: relative error {error:e} > {tolerance:e}",
                names[index],
            );
        }
        let again = run(case, scale, Some(implementation), dtype, dtype, &device);
        for (name, (first, second)) in names.iter().zip(ours.iter().zip(&again)) {
            prop_assert!(
                bits(first) == bits(second),
                "{implementation:?}, {dtype:?}, {name}: another result the second time"
            );
        }
    }
    Ok(())
}

const DTYPES: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

proptest! {
    #![proptest_config(ProptestConfig { cases: n_cases(48), ..ProptestConfig::default() })]

    #[test]
    fn every_implementation_equals_the_reference(
        mut case in cases(8),
        dims in prop::sample::select(&HEAD_DIMS),
        dtype in prop::sample::select(&DTYPES),
    ) {
        (case.head_dim, case.value_dim) = dims;
        compare(&case, dtype)?;
    }
}

/// Each head dimension in each dtype on a tree larger than the tiles, with past keys.
#[test]
fn every_head_dimension() {
    for dims in HEAD_DIMS {
        let mut case = case(vec![(None, 100), (Some(0), 70), (Some(0), 45)], dims);
        case.rows[0].past = (0..40).map(|key| (0.3, 0.5, key)).collect();
        case.padding = 3;
        for dtype in DTYPES {
            compare(&case, dtype).unwrap_or_else(|error| panic!("{dims:?}: {error}"));
        }
    }
}

/// What to run first on another device: few kernels, the features of all of them.
#[test]
fn chosen_few() {
    let start = std::time::Instant::now();
    for (dtype, head_dim, features) in [
        (DType::BF16, 128, false),
        (DType::F32, 128, false),
        (DType::F16, 64, true),
    ] {
        let nodes = vec![(None, 150), (Some(0), 130), (Some(0), 45), (Some(1), 70)];
        let mut case = case(nodes, (head_dim, head_dim));
        case.rows[0].past = (0..40).map(|key| (0.3, 0.5, key)).collect();
        case.padding = 3;
        if features {
            (case.softcap, case.sliding_window) = (Some(2.0), Some(90));
        }
        compare(&case, dtype).unwrap_or_else(|error| panic!("{dtype:?}, {head_dim}: {error}"));
        println!(
            "{dtype:?}, {head_dim}: {:.1} s",
            start.elapsed().as_secs_f64()
        );
    }
}

/// A negative scale turns the order of the scores around; with zero, all visible keys count alike.
#[test]
fn scales_of_any_sign() {
    for softcap in [None, Some(2.0)] {
        let mut case = case(vec![(None, 40), (Some(0), 30), (Some(0), 9)], (64, 64));
        case.softcap = softcap;
        for scale in [-0.3, 0.0] {
            for dtype in DTYPES {
                compare_scaled(&case, Some(scale), dtype)
                    .unwrap_or_else(|error| panic!("scale {scale}, {dtype:?}: {error}"));
            }
        }
    }
}

#[test]
fn one_token() {
    for dtype in DTYPES {
        compare(&case(vec![(None, 1)], (64, 64)), dtype).unwrap();
    }
}

#[test]
fn a_thousand_tiny_trees() {
    let trees: Vec<_> = (0..1000).map(|tree| (None, 1 + tree % 3)).collect();
    // Rows of one token: the gradient of their query is exactly zero.
    let mut case = case(trees, (16, 16));
    case.group = 1;
    for dtype in DTYPES {
        compare(&case, dtype).unwrap();
    }
}

#[test]
fn many_more_keys_than_queries() {
    let mut case = case(vec![(None, 5), (Some(0), 3), (Some(0), 4)], (64, 64));
    case.rows[0].past = (0..700)
        .map(|key| (f64::from(key % 3) / 3.0, 0.8, key))
        .collect();
    for window in [None, Some(300)] {
        case.sliding_window = window;
        compare(&case, DType::F32).unwrap();
    }
}
