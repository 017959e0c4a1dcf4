//! Tree attention against the dense reference: outputs and all gradients.

mod support;

use burn::tensor::{DType, Device, Tensor};
use burn_tree_attn::{
    KeyIntervals, KeyValue, PastKeyValue, PastKeys, TreeAttentionOptions, TreeMask, reference,
    tree_attention, tree_attention_with_past, try_tree_attention, try_tree_attention_with_past,
};
use proptest::prelude::*;
use support::{
    Case, Forest, Row, cases, computes_in, device, n_cases, random, reference_device,
    relative_error,
};

struct Results {
    output: Tensor<4>,
    gradients: [Tensor<4>; 3],
}

type Attention = fn(Tensor<4>, Tensor<4>, Tensor<4>, &TreeMask, TreeAttentionOptions) -> Tensor<4>;

/// Output and gradients for inputs rounded to `input_dtype` and computed in `dtype`.
fn run(
    case: &Case,
    attention: Attention,
    input_dtype: DType,
    dtype: DType,
    device: Device,
) -> Results {
    let mask = case.mask(&device);
    let [b, n, m] = [mask.batch_size(), mask.n_queries(), mask.n_keys()];
    let (heads, d, dv) = (case.kv_heads * case.group, case.head_dim, case.value_dim);
    let tensor =
        |shape, seed| random(shape, case.seed.wrapping_add(seed), input_dtype, &device).cast(dtype);
    let leaf = |shape, seed| Tensor::from_inner(tensor(shape, seed)).require_grad();
    let query = leaf([b, heads, n, d], 1);
    let key = leaf([b, case.kv_heads, m, d], 2);
    let value = leaf([b, case.kv_heads, m, dv], 3);
    let options = TreeAttentionOptions {
        scale: Some(2.0),
        softcap: case.softcap,
        sliding_window: case.sliding_window,
        ..Default::default()
    };
    let output = attention(query.clone(), key.clone(), value.clone(), &mask, options);
    let weight = Tensor::from_inner(tensor([b, heads, n, dv], 4));
    let gradients = (output.clone() * weight).sum().backward();
    let gradients = [&query, &key, &value].map(|leaf| leaf.grad(&gradients).unwrap());
    Results {
        output: output.inner(),
        gradients,
    }
}

fn compare(case: &Case, dtype: DType, tolerance: f64) -> Result<(), TestCaseError> {
    if !computes_in(dtype) {
        return Ok(());
    }
    let reference = reference::tree_attention;
    let exact = run(case, reference, dtype, DType::F64, reference_device());
    let ours = run(case, tree_attention, dtype, dtype, device());
    prop_assert_eq!(ours.output.dtype(), dtype);
    let pairs = std::iter::once((&ours.output, &exact.output))
        .chain(ours.gradients.iter().zip(&exact.gradients));
    for (name, (ours, exact)) in ["output", "query", "key", "value"].iter().zip(pairs) {
        let error = relative_error(ours, exact);
        prop_assert!(
            error <= tolerance,
            "{name}: relative error {error:e} > {tolerance:e}"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: n_cases(64), ..ProptestConfig::default() })]

    /// f64 throughout: only the order of sums differs.
    #[test]
    fn f64_equals_reference(case in cases(12)) {
        compare(&case, DType::F64, 1e-10)?;
    }

    /// Scores up to 18 (scale 2, nine products below 1) have an absolute error of some 2^-20,
    /// which the exponential makes relative.
    #[test]
    fn f32_equals_reference(case in cases(12)) {
        compare(&case, DType::F32, 2e-5)?;
    }

    /// Computed in f32; output and gradients are rounded to 8 bits, and the saved output enters
    /// the gradients (as `sum(dO * O)`) rounded.
    #[test]
    fn bf16_equals_reference(case in cases(12)) {
        compare(&case, DType::BF16, 2e-2)?;
    }

    /// As bf16, with 11 bits.
    #[test]
    fn f16_equals_reference(case in cases(12)) {
        compare(&case, DType::F16, 2.5e-3)?;
    }

    /// What is in another branch, or in padding, changes nothing: not a bit of the forward values.
    #[test]
    fn other_branches_do_not_matter(
        case in cases(12),
        pick in any::<prop::sample::Index>(),
        dtype in prop_oneof![Just(DType::F32), Just(DType::F64), Just(DType::BF16)],
    ) {
        let device = device();
        if !computes_in(dtype) {
            return Ok(());
        }
        let mask = case.mask(&device);
        let [b, n, m] = [mask.batch_size(), mask.n_queries(), mask.n_keys()];
        let heads = case.kv_heads * case.group;
        let options = TreeAttentionOptions {
            softcap: case.softcap,
            sliding_window: case.sliding_window,
            ..Default::default()
        };
        let key_index = pick.index(b * m);
        let (batch, changed_key) = (key_index / m, key_index % m);
        let query = random([b, heads, n, case.head_dim], case.seed, dtype, &device);
        let run = |change: f64| {
            let slices = [batch..batch + 1, 0..case.kv_heads, changed_key..changed_key + 1];
            let input = |width, seed| {
                let tensor = random([b, case.kv_heads, m, width], case.seed ^ seed, dtype, &device);
                let row = tensor.clone().slice(slices.clone()) + change;
                tensor.slice_assign(slices.clone(), row)
            };
            let (key, value) = (input(case.head_dim, 2), input(case.value_dim, 3));
            let output = tree_attention(query.clone(), key, value, &mask, options);
            output.into_data().iter::<f64>().map(f64::to_bits).collect::<Vec<_>>()
        };
        let (before, after) = (run(0.0), run(3.0));
        let visibility = mask.visibility();
        let seen = visibility.key_start()[key_index]..visibility.key_end()[key_index];
        for (at, (before, after)) in before.iter().zip(&after).enumerate() {
            let row = at / case.value_dim % n;
            let in_batch = at / (case.value_dim * n * heads) == batch;
            prop_assert!(
                before == after || (in_batch && seen.contains(&(row as u32))),
                "row {row} changed with key {changed_key}"
            );
        }
    }
}

/// Rows that see nothing: exact zeros, and exactly zero gradients.
#[test]
fn blind_rows_are_zero() {
    let device = device();
    let layout = Forest(vec![(None, 3), (Some(0), 2)]).layout();
    // Row 0 of the batch is padded by four; row 1 is empty.
    let empty = Forest(Vec::new()).layout();
    let mask = TreeMask::from_layouts(&[layout, empty], 9, &device);
    let dtypes = [DType::F64, DType::F32, DType::F16, DType::BF16];
    for dtype in dtypes.into_iter().filter(|&it| computes_in(it)) {
        let leaf =
            |seed| Tensor::from_inner(random([2, 2, 9, 4], seed, dtype, &device)).require_grad();
        let (query, key, value) = (leaf(1), leaf(2), leaf(3));
        let options = TreeAttentionOptions::default();
        let output = tree_attention(query.clone(), key.clone(), value.clone(), &mask, options);
        let gradients = output.clone().sum().backward();
        let tensors = [&query, &key, &value].map(|leaf| leaf.grad(&gradients).unwrap());
        for (index, tensor) in std::iter::once(output.inner()).chain(tensors).enumerate() {
            let values: Vec<f64> = tensor.into_data().iter::<f64>().collect();
            for (at, value) in values.into_iter().enumerate() {
                let (batch, row) = (at / (2 * 9 * 4), at / 4 % 9);
                assert!(value.is_finite());
                assert!(
                    value == 0.0 || (batch == 0 && row < 5),
                    "{index}: {value} in row {row}"
                );
            }
        }
    }
}

/// A node that ends on a tile boundary with many descendants (its mask words would sum to zero
/// where whole blocks are skipped by such a test).
#[test]
fn nodes_ending_on_tile_boundaries_with_many_descendants() {
    let mut nodes = vec![(None, 112), (Some(0), 16)];
    nodes.resize(2 + 192, (Some(1), 1));
    let case = Case {
        rows: vec![Row {
            forest: Forest(nodes),
            past: Vec::new(),
        }],
        padding: 0,
        kv_heads: 1,
        group: 2,
        head_dim: 8,
        value_dim: 8,
        softcap: None,
        sliding_window: None,
        seed: 5,
    };
    compare(&case, DType::F64, 1e-10).unwrap();
    compare(&case, DType::F32, 2e-5).unwrap();
}

/// Only some inputs require gradients.
#[test]
fn gradients_of_single_inputs() {
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 4)]).layout()], 4, &device);
    let input = |seed| random([1, 2, 4, 4], seed, DType::F32, &device);
    let all: Vec<_> = (1..4)
        .map(|seed| Tensor::from_inner(input(seed)).require_grad())
        .collect();
    let attend = |inputs: [Tensor<4>; 3]| {
        let [query, key, value] = inputs;
        let options = TreeAttentionOptions::default();
        tree_attention(query, key, value, &mask, options)
            .powi_scalar(2)
            .sum()
            .backward()
    };
    let expected = attend([all[0].clone(), all[1].clone(), all[2].clone()]);
    for single in 0..3 {
        let inputs: [_; 3] = std::array::from_fn(|i| {
            let tensor = Tensor::from_inner(input(i as u64 + 1));
            if i == single {
                tensor.require_grad()
            } else {
                tensor
            }
        });
        let gradients = attend(inputs.clone());
        let ours = inputs[single].grad(&gradients).unwrap();
        assert_eq!(
            relative_error(&ours, &all[single].grad(&expected).unwrap()),
            0.0
        );
    }
}

/// Bits of the output, and of the gradients of query, past key, past value, key and value where they
/// are tracked. Without autodiff if nothing is.
fn run_with_past(
    case: &Case,
    join_before: bool,
    tracked: [bool; 5],
    dtype: DType,
) -> [Option<Vec<u64>>; 6] {
    let device = device();
    let mask = case.mask(&device);
    let [b, n, m] = [mask.batch_size(), mask.n_queries(), mask.n_keys()];
    let (heads, d, dv) = (case.kv_heads * case.group, case.head_dim, case.value_dim);
    let tensor = |shape, seed| random(shape, case.seed.wrapping_add(seed), dtype, &device);
    let autodiff = tracked.contains(&true);
    let shapes = [
        [b, heads, n, d],
        [b, case.kv_heads, m - n, d],
        [b, case.kv_heads, m - n, dv],
        [b, case.kv_heads, n, d],
        [b, case.kv_heads, n, dv],
    ];
    let inputs: [Tensor<4>; 5] = std::array::from_fn(|index| {
        let input = tensor(shapes[index], index as u64);
        match (autodiff, tracked[index]) {
            (false, _) => input,
            (true, false) => Tensor::from_inner(input),
            (true, true) => Tensor::from_inner(input).require_grad(),
        }
    });
    let options = TreeAttentionOptions {
        softcap: case.softcap,
        sliding_window: case.sliding_window,
        ..Default::default()
    };
    let [query, past_key, past_value, key, value] = inputs.clone();
    let output = match join_before {
        true => {
            let key = Tensor::cat(vec![past_key, key], 2);
            let value = Tensor::cat(vec![past_value, value], 2);
            tree_attention(query, key, value, &mask, options)
        }
        false => {
            let past = PastKeyValue {
                key: past_key,
                value: past_value,
            };
            let own = KeyValue { key, value };
            tree_attention_with_past(query, past, own, &mask, options)
        }
    };
    let gradients = autodiff.then(|| {
        let weight = Tensor::from_inner(tensor([b, heads, n, dv], 5));
        (output.clone() * weight).sum().backward()
    });
    let bits = |tensor: Tensor<4>| {
        let data = tensor.into_data();
        data.iter::<f64>().map(f64::to_bits).collect::<Vec<_>>()
    };
    std::array::from_fn(|index| match index.checked_sub(1) {
        None => Some(bits(output.clone())),
        Some(input) => inputs[input].grad(gradients.as_ref()?).map(bits),
    })
}

/// Past and own keys give what they give joined, to the last bit, whatever is tracked.
#[test]
fn past_keys_equal_joined_ones() {
    let past = |keys: u32| (0..keys).map(|key| (0.2, 0.7, key)).collect();
    let mut case = Case {
        rows: vec![
            Row {
                forest: Forest(vec![(None, 30), (Some(0), 7), (Some(0), 9)]),
                past: past(21),
            },
            Row {
                forest: Forest(vec![(None, 12), (None, 5)]),
                past: past(3),
            },
        ],
        padding: 2,
        kv_heads: 2,
        group: 2,
        head_dim: 16,
        value_dim: 24,
        softcap: None,
        sliding_window: None,
        seed: 7,
    };
    let single = (0..5).map(|input| std::array::from_fn(|it| it == input));
    let several = [
        [false; 5],
        [true; 5],
        // A past of constants; only the past.
        [true, false, false, true, true],
        [false, true, true, false, false],
    ];
    let tracked: Vec<[bool; 5]> = single.chain(several).collect();
    let dtypes = [DType::F64, DType::F32, DType::BF16];
    for dtype in dtypes.into_iter().filter(|&it| computes_in(it)) {
        for (softcap, sliding_window) in [(None, None), (Some(2.0), Some(15))] {
            (case.softcap, case.sliding_window) = (softcap, sliding_window);
            for &tracked in &tracked {
                let ours = run_with_past(&case, false, tracked, dtype);
                let joined = run_with_past(&case, true, tracked, dtype);
                assert!(ours == joined, "{dtype:?}, {tracked:?}");
                let gradients = ours[1..].iter().map(Option::is_some);
                assert!(gradients.eq(tracked), "{dtype:?}, {tracked:?}");
            }
        }
    }
}

/// What is joined may be empty on one side.
#[test]
fn no_past_and_nothing_but_past() {
    let device = device();
    let mask = TreeMask::from_intervals(
        &[KeyIntervals {
            key_start: vec![0, 1],
            key_end: vec![2, 2],
            key_position: vec![0, 1],
            query_position: vec![0, 1],
        }],
        &device,
    )
    .unwrap();
    let options = TreeAttentionOptions::default();
    let leaf =
        |seed| Tensor::from_inner(random([1, 2, 2, 4], seed, DType::F32, &device)).require_grad();
    let empty = || Tensor::from_inner(Tensor::<4>::zeros([1, 2, 0, 4], &device));
    let (query, key, value) = (leaf(1), leaf(2), leaf(3));
    let values = |output: Tensor<4>| {
        let gradients = output.clone().sum().backward();
        [&query, &key, &value]
            .map(|leaf| leaf.grad(&gradients).unwrap())
            .into_iter()
            .chain([output.inner()])
            .map(|tensor| tensor.into_data())
            .collect::<Vec<_>>()
    };
    let keys = || [key.clone(), value.clone()];
    let none = || [empty(), empty()];
    let [no_past, only_past] = [(none(), keys()), (keys(), none())].map(|(past, own)| {
        let [key, value] = past;
        let past = PastKeyValue { key, value };
        let [key, value] = own;
        let own = KeyValue { key, value };
        tree_attention_with_past(query.clone(), past, own, &mask, options)
    });
    let [all_keys, all_values] = keys();
    let whole = tree_attention(query.clone(), all_keys, all_values, &mask, options);
    let expected = values(whole);
    assert_eq!(values(no_past), expected);
    assert_eq!(values(only_past), expected);
}

#[test]
fn a_past_that_does_not_fit_is_refused() {
    let device = device();
    let past = [PastKeys {
        start: vec![0; 2],
        end: vec![3; 2],
        position: vec![0, 1],
    }];
    let layout = Forest(vec![(None, 3)]).layout();
    let mask = TreeMask::with_past_keys(&[layout], 3, &past, &device).unwrap();
    let zeros = |shape: [usize; 4]| Tensor::<4>::zeros(shape, &device);
    let options = TreeAttentionOptions::default();
    let own = || zeros([1, 2, 3, 4]);
    let refuse = |key, value| {
        let past = PastKeyValue { key, value };
        let (key, value) = (own(), own());
        try_tree_attention_with_past(own(), past, KeyValue { key, value }, &mask, options)
            .unwrap_err()
    };
    let shape = [1, 2, 2, 4];
    for (key, value, text) in [
        (
            [2, 2, 2, 4],
            shape,
            "past key has shape [2, 2, 2, 4], expected batch size 1 (of the key)",
        ),
        (
            [1, 1, 2, 4],
            shape,
            "past key has shape [1, 1, 2, 4], expected head count 2 (of the key)",
        ),
        (
            [1, 2, 1, 4],
            shape,
            "past and own key has shape [1, 2, 4, 4], expected row count 5 (of the mask)",
        ),
        (
            [1, 2, 2, 8],
            shape,
            "past key has shape [1, 2, 2, 8], expected head dimension 4 (of the key)",
        ),
        (
            shape,
            [1, 2, 3, 4],
            "past value has shape [1, 2, 3, 4], expected row count 2 (of the past key)",
        ),
        (
            shape,
            [1, 2, 2, 8],
            "past value has shape [1, 2, 2, 8], expected head dimension 4 (of the value)",
        ),
    ] {
        let error = refuse(zeros(key), zeros(value)).to_string();
        assert!(error.contains(text), "{error}");
    }
    assert_eq!(
        refuse(zeros(shape), zeros(shape).cast(DType::F16)).to_string(),
        "tree_attention: past value is F16, expected F32, the dtype of query"
    );
}

/// Only the keys of the rows are given, with a mask of rows that see past ones.
#[test]
fn missing_past_keys_are_named() {
    let device = device();
    let past = [PastKeys {
        start: vec![0; 56],
        end: vec![3; 56],
        position: (0..56).collect(),
    }];
    let layout = Forest(vec![(None, 3)]).layout();
    let mask = TreeMask::with_past_keys(&[layout], 3, &past, &device).unwrap();
    let refuse = |keys| {
        let rows = |rows| Tensor::<4>::zeros([1, 2, rows, 4], &device);
        let options = TreeAttentionOptions::default();
        try_tree_attention(rows(3), rows(keys), rows(keys), &mask, options)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refuse(3),
        "tree_attention: key has shape [1, 2, 3, 4], expected row count 59 (of the mask, 56 of them \
         past keys of another pack: see tree_attention_with_past)"
    );
    // Some other mistake.
    assert_eq!(
        refuse(4),
        "tree_attention: key has shape [1, 2, 4, 4], expected row count 59 (of the mask)"
    );
}

#[test]
fn wrong_arguments_are_refused() {
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 3)]).layout()], 3, &device);
    let zeros = |shape: [usize; 4]| Tensor::<4>::zeros(shape, &device);
    let refuse = |shapes: [[usize; 4]; 3], options| {
        let [query, key, value] = shapes.map(zeros);
        try_tree_attention(query, key, value, &mask, options)
            .unwrap_err()
            .to_string()
    };
    let options = TreeAttentionOptions::default();
    let shape = [1, 2, 3, 4];
    for (shapes, text) in [
        (
            [[2, 2, 3, 4], shape, shape],
            "query has shape [2, 2, 3, 4], expected batch size 1 (of the mask)",
        ),
        (
            [[1, 2, 5, 4], shape, shape],
            "query has shape [1, 2, 5, 4], expected row count 3 (of the mask)",
        ),
        (
            [shape, [2, 2, 3, 4], shape],
            "key has shape [2, 2, 3, 4], expected batch size 1 (of the query)",
        ),
        (
            [shape, [1, 2, 4, 4], shape],
            "key has shape [1, 2, 4, 4], expected row count 3 (of the mask)",
        ),
        (
            [shape, [1, 2, 3, 5], shape],
            "key has shape [1, 2, 3, 5], expected head dimension 4 (of the query)",
        ),
        (
            [shape, shape, [1, 1, 3, 4]],
            "value has shape [1, 1, 3, 4], expected head count 2 (of the key)",
        ),
        (
            [shape, shape, [1, 2, 2, 4]],
            "value has shape [1, 2, 2, 4], expected row count 3 (of the key)",
        ),
        (
            [[1, 3, 3, 4], shape, shape],
            "query has shape [1, 3, 3, 4], expected head count a positive multiple of 2 (key and value heads)",
        ),
    ] {
        let error = refuse(shapes, options);
        assert!(error.contains(text), "{error}");
    }
    for (options, text) in [
        (
            TreeAttentionOptions {
                scale: Some(f64::NAN),
                ..options
            },
            "option `scale` is NaN",
        ),
        (
            TreeAttentionOptions {
                softcap: Some(0.0),
                ..options
            },
            "option `softcap` is 0",
        ),
        (
            TreeAttentionOptions {
                sliding_window: Some(0),
                ..options
            },
            "option `sliding_window`",
        ),
    ] {
        let error = refuse([shape; 3], options);
        assert!(error.contains(text), "{error}");
    }
    let half = zeros(shape).cast(DType::F16);
    let error = try_tree_attention(zeros(shape), half, zeros(shape), &mask, options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tree_attention: key is F16, expected F32, the dtype of query"
    );
}

#[test]
#[should_panic(
    expected = "tree_attention: query has shape [1, 1, 2, 4], expected row count 3 (of the mask)"
)]
fn the_plain_function_panics_with_the_text_of_the_error() {
    let device = device();
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 3)]).layout()], 3, &device);
    let zeros = || Tensor::<4>::zeros([1, 1, 2, 4], &device);
    tree_attention(
        zeros(),
        zeros(),
        zeros(),
        &mask,
        TreeAttentionOptions::default(),
    );
}
