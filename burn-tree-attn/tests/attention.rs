//! Tree attention against the dense reference: outputs and all gradients.

mod support;

use burn::tensor::{DType, Tensor};
use burn_tree_attn::{TreeAttentionOptions, TreeMask, reference, tree_attention};
use proptest::prelude::*;
use support::{Case, cases, device, random, relative_error};

struct Results {
    output: Tensor<4>,
    gradients: [Tensor<4>; 3],
}

type Attention = fn(Tensor<4>, Tensor<4>, Tensor<4>, &TreeMask, TreeAttentionOptions) -> Tensor<4>;

/// Output and gradients for inputs rounded to `input_dtype` and computed in `dtype`.
fn run(case: &Case, attention: Attention, input_dtype: DType, dtype: DType) -> Results {
    let device = device();
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
    let exact = run(case, reference::tree_attention, dtype, DType::F64);
    let ours = run(case, tree_attention, dtype, dtype);
    prop_assert_eq!(ours.output.dtype(), dtype);
    let pairs = std::iter::once((&ours.output, &exact.output))
        .chain(ours.gradients.iter().zip(&exact.gradients));
    for (name, (ours, exact)) in ["output", "query", "key", "value"].iter().zip(pairs) {
        let error = relative_error(&ours.clone().cast(DType::F64), exact);
        prop_assert!(
            error <= tolerance,
            "{name}: relative error {error:e} > {tolerance:e}"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// f64 throughout: only the order of sums differs.
    #[test]
    fn f64_equals_reference(case in cases(12)) {
        compare(&case, DType::F64, 1e-10)?;
    }
}
