//! Every implementation that a device has, forced one by one, at the head dimensions of models.

mod support;

use std::sync::RwLock;

use burn::tensor::{DType, Device, Tensor};
use burn_tree_attn::{
    ArgumentError, Implementation, TreeAttentionOptions, TreeMask, reference, try_tree_attention,
};
use proptest::prelude::*;
use support::{
    Case, Forest, Row, cases, computes_in, device, is_cubecl, n_cases, random, reference_device,
    relative_error,
};

const ALL: [Implementation; 4] = [
    Implementation::Automatic,
    Implementation::Generic,
    Implementation::Portable,
    Implementation::Accelerated,
];

/// Kernels are counted for the whole process: whoever counts wants to be alone.
static LAUNCHES: RwLock<()> = RwLock::new(());

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

/// Those that run these head dimensions in `dtype` on the device.
fn available(dtype: DType, head_dim: usize, value_dim: usize) -> Vec<Implementation> {
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 1)]).layout()], 1, &device);
    let zeros = |width| Tensor::<4>::zeros([1, 1, 1, width], (&device, dtype));
    let runs = |&implementation: &Implementation| {
        let options = TreeAttentionOptions {
            implementation,
            ..Default::default()
        };
        let (query, key, value) = (zeros(head_dim), zeros(head_dim), zeros(value_dim));
        match try_tree_attention(query, key, value, &mask, options) {
            Ok(_) => true,
            Err(ArgumentError::Implementation { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    };
    ALL.into_iter().filter(runs).collect()
}

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

fn bits(tensor: &Tensor<4>) -> Vec<u64> {
    tensor.to_data().iter::<f64>().map(f64::to_bits).collect()
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

fn case(nodes: Vec<(Option<usize>, usize)>, (head_dim, value_dim): (usize, usize)) -> Case {
    Case {
        rows: vec![Row {
            forest: Forest(nodes),
            past: Vec::new(),
        }],
        padding: 0,
        kv_heads: 1,
        group: 2,
        head_dim,
        value_dim,
        softcap: None,
        sliding_window: None,
        seed: 11,
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

/// Shapes of packs are arguments of kernels: fifty of them compile no more than one.
#[cfg(feature = "cubecl-backend")]
#[test]
fn other_shapes_compile_no_other_kernels() {
    use cubecl::launched::LaunchedKernels;
    use support::direct;

    let Some(device) = direct::device() else {
        println!("skipped: there are no kernels for this device");
        return;
    };
    // On compute capability 9.0, head dimension 64 has kernels of its own.
    for (implementation, dtype, dim) in [
        (Implementation::Portable, DType::F32, 16),
        (Implementation::Accelerated, DType::BF16, 64),
        (Implementation::Accelerated, DType::F16, 80),
    ] {
        if !computes_in(dtype) || !available(dtype, dim, dim).contains(&implementation) {
            println!("skipped: {implementation:?} kernels, {dtype:?}, {dim}: not on this device");
            continue;
        }
        let _alone = LAUNCHES.write();
        let launched = |packs: &[Case]| {
            let call = |pack| direct::Call::new(pack, dtype, implementation, &device);
            let calls: Vec<_> = packs.iter().map(call).collect();
            let collection = LaunchedKernels::new();
            let results: Vec<_> = calls.into_iter().map(direct::Call::run).collect();
            let launched = collection.finish();
            for result in results.into_iter().flatten() {
                direct::values(result).unwrap();
            }
            launched
        };
        let one = case(vec![(None, 70), (Some(0), 9)], (dim, dim));
        let fifty: Vec<Case> = (1..=50usize)
            .map(|shape| {
                let nodes = (0..shape).map(|node| (node.checked_sub(1 + node % 2), 1 + node % 7));
                let mut pack = case(nodes.collect(), (dim, dim));
                pack.rows[0].past = (0..shape as u32 % 5 * 30)
                    .map(|key| (0.2, 0.7, key))
                    .collect();
                pack.padding = shape % 4;
                pack.kv_heads = 1 + shape % 3;
                if implementation == Implementation::Portable {
                    pack.group = 1 + shape % 4;
                }
                pack
            })
            .collect();
        let one = launched(&[one]);
        let fifty = launched(&fifty);
        assert!(!one.is_empty());
        assert_eq!(
            fifty.difference(&one).count(),
            0,
            "{implementation:?}, {dtype:?}, {dim}: besides {} kernels",
            one.len()
        );
        println!(
            "{implementation:?}, {dtype:?}, {dim}: {} kernels for {} packs",
            one.len(),
            51
        );
    }
}

/// More cubes than a launch can have.
#[test]
fn a_call_that_cannot_be_laid_out_is_refused() {
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 1)]).layout()], 1, &device);
    for (implementation, dtype, reason) in [
        (
            Implementation::Portable,
            DType::F32,
            "too many for one launch",
        ),
        (Implementation::Accelerated, DType::F16, "2^32"),
    ] {
        if !computes_in(dtype) {
            continue;
        }
        let reason = match available(dtype, 16, 16).contains(&implementation) {
            true => reason,
            false => "",
        };
        // All heads are one in memory.
        let heads =
            || Tensor::<4>::zeros([1, 1, 1, 16], (&device, dtype)).expand([1, 1i64 << 32, 1, 16]);
        let options = TreeAttentionOptions {
            implementation,
            ..Default::default()
        };
        let error = try_tree_attention(heads(), heads(), heads(), &mask, options).unwrap_err();
        assert!(
            matches!(error, ArgumentError::Implementation { requested, .. } if requested == implementation)
                && error.to_string().contains(reason),
            "{error}"
        );
    }
}

/// A device that fails later than at the call has no results to read: whatever depends on what
/// failed is an error, nothing else is.
#[test]
fn a_failure_of_the_device_is_an_error_of_what_depends_on_it() {
    if !is_cubecl() {
        return;
    }
    let _launches = LAUNCHES.read();
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 16)]).layout()], 16, &device);
    let leaf =
        |seed| Tensor::from_inner(random([1, 1, 16, 16], seed, DType::F32, &device)).require_grad();
    let (query, key, value) = (leaf(1), leaf(2), leaf(3));
    // 512 GiB of queries: no device has them.
    let options = TreeAttentionOptions::default();
    let queries = query.expand([1, 1 << 29, 16, 16]);
    let output = try_tree_attention(queries, key.clone(), value.clone(), &mask, options).unwrap();
    let gradients = output.clone().sum().backward();
    assert!(output.slice([0..1, 0..1]).try_into_data().is_err());
    for leaf in [key, value] {
        assert!(leaf.grad(&gradients).unwrap().try_into_data().is_err());
        assert!(leaf.try_into_data().is_ok());
    }
}

#[test]
fn an_implementation_that_cannot_run_is_refused() {
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 2)]).layout()], 2, &device);
    // More than the kernels have registers for.
    let zeros = || Tensor::<4>::zeros([1, 1, 2, 5000], &device);
    let _launches = LAUNCHES.read();
    for implementation in ALL {
        let options = TreeAttentionOptions {
            implementation,
            ..Default::default()
        };
        let result = try_tree_attention(zeros(), zeros(), zeros(), &mask, options);
        match implementation {
            Implementation::Automatic | Implementation::Generic => {
                assert!(
                    result
                        .unwrap()
                        .into_data()
                        .iter::<f32>()
                        .all(|it| it == 0.0)
                );
            }
            requested => {
                let error = result.unwrap_err();
                assert!(
                    matches!(&error, ArgumentError::Implementation { requested: it, .. } if *it == requested),
                    "{error}"
                );
            }
        }
    }
}

/// More than 2^31 elements: the last trees give the same as alone. Needs some 30 GB of device memory:
/// `cargo test --release --test implementations -- --ignored`.
#[test]
#[ignore = "needs some 30 GB of device memory"]
fn offsets_beyond_2_31() {
    const HEADS: usize = 16;
    const DIM: usize = 128;
    let device = device();
    let dtype = DType::F16;
    let tree = Forest(vec![(None, 60), (Some(0), 40), (Some(0), 28)]);
    let trees = (1usize << 31) / (HEADS * DIM * 128) + 2;
    let forest = |trees: usize| {
        let nodes = (0..trees).flat_map(|it| {
            let in_tree = move |parent: Option<usize>| parent.map(|parent| 3 * it + parent);
            tree.0
                .iter()
                .map(move |&(parent, len)| (in_tree(parent), len))
                .collect::<Vec<_>>()
        });
        Forest(nodes.collect())
    };
    let n = 128 * trees;
    assert!(HEADS * n * DIM > 1 << 31);
    let noise = || {
        let between = burn::tensor::Distribution::Uniform(-1.0, 1.0);
        Tensor::<4>::random([1, HEADS, n, DIM], between, (&device, dtype))
    };
    let inputs = [noise(), noise(), noise()];
    let attend = |inputs: [Tensor<4>; 3], trees, implementation| {
        let mask = TreeMask::from_layouts(&[forest(trees).layout()], 128 * trees, &device);
        let options = TreeAttentionOptions {
            implementation,
            ..Default::default()
        };
        let [query, key, value] = inputs.map(|it| Tensor::from_inner(it).require_grad());
        let inputs = (query.clone(), key.clone(), value.clone());
        let output = try_tree_attention(inputs.0, inputs.1, inputs.2, &mask, options).unwrap();
        let gradients = output.clone().sum().backward();
        [output.inner()]
            .into_iter()
            .chain([query, key, value].map(|leaf| leaf.grad(&gradients).unwrap()))
            .map(last)
            .collect::<Vec<_>>()
    };
    fn last(tensor: Tensor<4>) -> Tensor<4> {
        let [_, heads, rows, dim] = tensor.dims();
        tensor.slice([0..1, 0..heads, rows - 256..rows, 0..dim])
    }
    for implementation in available(dtype, DIM, DIM) {
        if implementation == Implementation::Generic {
            continue;
        }
        let whole = attend(inputs.clone(), trees, implementation);
        let alone = attend(inputs.clone().map(last), 2, implementation);
        for (whole, alone) in whole.iter().zip(&alone) {
            assert!(bits(whole) == bits(alone), "{implementation:?}");
        }
    }
}
