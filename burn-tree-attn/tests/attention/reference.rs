//! Outputs and gradients against the reference.

use burn::tensor::{DType, Device, Tensor};
use burn_tree_attn::{TreeAttentionOptions, TreeMask, reference, tree_attention};
use proptest::prelude::*;

use crate::support::{
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
