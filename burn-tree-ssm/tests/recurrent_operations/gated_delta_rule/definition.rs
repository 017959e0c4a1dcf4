//! Outputs, states and gradients against the definition.

use burn::tensor::DType;
use burn_tree_ssm::Implementation::{self, Automatic, Generic};
use proptest::prelude::*;

use super::HEADS;
use crate::delta_rule::{Heads, Inputs, SLOW, STRONG};
use crate::support::{Batch, Forest, batches, cases, computes_in, device, reference_device};

/// Relative errors of outputs and gradients. In f64 nothing but the order of sums differs; in f32
/// these are the bars of the project. In 16 bits the tensors themselves are rounded (to 2^-9 in
/// bf16), and so is the inverse that the backward pass reads.
fn tolerances(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (1e-10, 1e-10),
        DType::F32 => (1e-5, 2e-5),
        DType::F16 => (2e-3, 4e-3),
        _ => (1e-2, 2e-2),
    }
}

/// `bar`, but for what is made of Burn's f32 products on CUDA: these round their factors to the 10 bits of
/// TF32.
pub fn bar_of(implementation: Implementation, dtype: DType, bar: f64) -> f64 {
    let in_tf32 = tree_training_devices::name_from_environment().starts_with("cuda");
    match in_tf32 && implementation == Generic && dtype == DType::F32 {
        true => 3e-3,
        false => bar,
    }
}

fn check(
    batch: &Batch,
    heads: Heads,
    decay: f64,
    seed: u64,
    dtype: DType,
    implementation: Implementation,
) {
    if !computes_in(dtype) {
        return;
    }
    let recurrence = batch.recurrence();
    let inputs = Inputs::random(&recurrence, heads, decay, seed).rounded(dtype);
    let found = inputs.found(&device(), dtype, implementation);
    let (forward, backward) = tolerances(dtype);
    let bar = |bar| bar_of(implementation, dtype, bar);
    found.assert_close(&inputs.expected(), bar(forward), bar(backward));
    found.assert_zero_padding(&recurrence);
}

fn decays() -> impl Strategy<Value = f64> {
    prop_oneof![Just(SLOW), Just(STRONG)]
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn generic_in_f64(batch in batches(12), decay in decays(), seed in 0..1000u64) {
        let inputs = Inputs::random(&batch.recurrence(), HEADS, decay, seed);
        let found = inputs.found(&reference_device(), DType::F64, Generic);
        found.assert_close(&inputs.expected(), 1e-10, 1e-10);
    }

    #[test]
    fn generic_in_f32(batch in batches(12), decay in decays(), seed in 0..1000u64) {
        check(&batch, HEADS, decay, seed, DType::F32, Generic);
    }

    #[test]
    fn automatic_in_f64(batch in batches(12), decay in decays(), seed in 0..1000u64) {
        check(&batch, HEADS, decay, seed, DType::F64, Automatic);
    }

    #[test]
    fn automatic_in_f32(batch in batches(12), decay in decays(), seed in 0..1000u64) {
        check(&batch, HEADS, decay, seed, DType::F32, Automatic);
    }
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn automatic_in_16_bits(batch in batches(8), decay in decays(), seed in 0..1000u64) {
        for dtype in [DType::BF16, DType::F16] {
            check(&batch, HEADS, decay, seed, dtype, Automatic);
        }
    }

    /// Dimensions that fill blocks, and one that overhangs them.
    #[test]
    fn automatic_with_wide_heads(
        batch in batches(5),
        decay in decays(),
        key_dim in prop::sample::select(vec![16usize, 32, 40]),
        value_dim in prop::sample::select(vec![16usize, 48]),
    ) {
        let heads = Heads { key_heads: 1, group: 2, key_dim, value_dim };
        check(&batch, heads, decay, 1, DType::F32, Automatic);
    }
}

/// Nodes shorter than, as long as, and longer than windows, alone, below each other and beside
/// each other, in every size of windows.
#[test]
fn every_node_length_in_every_window_size() {
    for length in [1, 2, 3, 63, 64, 65, 130] {
        let forest = Forest(vec![
            (None, length),
            (Some(0), 3),
            (Some(0), length),
            (Some(2), length),
            (Some(2), 1),
        ]);
        for window_rows in [1, 2, 16, 64] {
            for (decay, seed) in [(SLOW, 1), (STRONG, 2)] {
                let batch = Batch::of(forest.clone(), window_rows);
                for dtype in [DType::F64, DType::F32] {
                    check(&batch, HEADS, decay, seed, dtype, Automatic);
                    check(&batch, HEADS, decay, seed, dtype, Generic);
                }
            }
        }
    }
}

/// A state that passes 25 forks.
#[test]
fn deep_trees() {
    let mut nodes = vec![(None, 2)];
    for depth in 1..25 {
        // The first of each pair continues.
        let above = if depth == 1 { 0 } else { 2 * depth - 3 };
        nodes.push((Some(above), 1 + depth % 4));
        nodes.push((Some(above), 2));
    }
    for window_rows in [2, 16, 64] {
        let batch = Batch::of(Forest(nodes.clone()), window_rows);
        check(&batch, HEADS, SLOW, 3, DType::F64, Automatic);
        check(&batch, HEADS, SLOW, 3, DType::F32, Automatic);
    }
}

/// Nothing but padding: zeros, and zero gradients.
#[test]
fn an_empty_layout() {
    let batch = Batch {
        padding: 3,
        ..Batch::of(Forest(Vec::new()), 64)
    };
    let recurrence = batch.recurrence();
    let inputs = Inputs::random(&recurrence, HEADS, SLOW, 4);
    for implementation in [Automatic, Generic] {
        let found = inputs.found(&device(), DType::F32, implementation);
        found.assert_zero_padding(&recurrence);
    }
}
