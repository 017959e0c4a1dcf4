//! The gated delta rule on the device under test against the token recurrence in f64.

mod arguments;
mod definition;
mod pitfalls;
mod states;

use crate::delta_rule::Heads;

/// Small heads of odd sizes, two value heads for each key head.
const HEADS: Heads = Heads {
    key_heads: 2,
    group: 2,
    key_dim: 5,
    value_dim: 3,
};
