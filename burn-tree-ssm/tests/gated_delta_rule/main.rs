//! The gated delta rule on the device under test against the token recurrence in f64.

#[path = "../support/delta_rule.rs"]
mod delta_rule;
#[path = "../support/mod.rs"]
mod support;

mod arguments;
mod definition;
mod pitfalls;
mod states;

use delta_rule::Heads;

/// Small heads of odd sizes, two value heads for each key head.
const HEADS: Heads = Heads {
    key_heads: 2,
    group: 2,
    key_dim: 5,
    value_dim: 3,
};
