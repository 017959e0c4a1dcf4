//! The gated delta rule on a device against the token recurrence in f64.

#[path = "support/delta_rule.rs"]
mod delta_rule;
mod support;

use burn::tensor::DType;
use burn_tree_ssm::GatedDeltaRuleImplementation::Generic;
use proptest::prelude::*;

use delta_rule::{Heads, Inputs, SLOW, STRONG};
use support::{batches, device, reference_device};

const HEADS: Heads = Heads {
    key_heads: 1,
    group: 2,
    key_dim: 5,
    value_dim: 3,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(support::n_cases(48)))]

    /// In f64 nothing but the order of sums differs from the definition.
    #[test]
    fn generic_equals_the_definition_in_f64(
        batch in batches(12),
        slow in any::<bool>(),
        seed in 0..1000u64,
    ) {
        let decay = if slow { SLOW } else { STRONG };
        let recurrence = batch.recurrence();
        let inputs = Inputs::random(&recurrence, HEADS, decay, seed);
        let found = inputs.found(&reference_device(), DType::F64, Generic);
        found.assert_close(&inputs.expected(), 1e-10, 1e-10);
        found.assert_zero_padding(&recurrence);
    }

    /// The bars of the project: 1e-5 and 2e-5 in f32.
    #[test]
    fn generic_equals_the_definition_in_f32(
        batch in batches(12),
        slow in any::<bool>(),
        seed in 0..1000u64,
    ) {
        let decay = if slow { SLOW } else { STRONG };
        let inputs = Inputs::random(&batch.recurrence(), HEADS, decay, seed).rounded(DType::F32);
        let found = inputs.found(&device(), DType::F32, Generic);
        found.assert_close(&inputs.expected(), 1e-5, 2e-5);
    }
}
