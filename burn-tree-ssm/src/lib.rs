//! Gated DeltaNet and causal convolution on trees of sequences, as Burn operations.
//!
//! A tree of sequences with shared prefixes is laid out as one row of tokens in depth-first order.
//! A [`TreeRecurrence`] says which token continues which; [`tree_gated_delta_rule`] then gives each
//! token the state and the output that it would have alone on its path.
//!
//! All are operations of a backend extension, [`TreeSsmOps`]: any Burn backend runs them from its
//! primitives, and some have faster implementations of their own.

#![cfg_attr(any(feature = "tch", feature = "ndarray"), allow(deprecated))]

mod backends;
pub mod gated_delta_rule;
mod ops;
mod precision;
mod recurrence;

pub use gated_delta_rule::{
    GatedDeltaRuleError, GatedDeltaRuleImplementation, GatedDeltaRuleOptions, GatedDeltaRuleOutput,
    GatedDeltaRuleSettings, tree_gated_delta_rule, try_tree_gated_delta_rule,
};
pub use ops::TreeSsmOps;
pub use recurrence::{
    ConvolutionPlan, ENTRY_ZERO, MAX_ROWS, MAX_WINDOW_ROWS, RecurrenceError, TreeRecurrence,
};
