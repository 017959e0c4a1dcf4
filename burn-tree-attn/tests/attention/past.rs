//! Keys of an earlier pack.

use burn::tensor::{DType, Tensor};
use burn_tree_attn::{
    KeyIntervals, KeyValue, PastKeyValue, TreeAttentionOptions, TreeMask, tree_attention,
    tree_attention_with_past,
};

use crate::support::{Case, Forest, Row, computes_in, device, random};

/// Bits of the output, and of the gradients of query, past key, past value, key and value where
/// they are tracked. Without autodiff if nothing is.
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
