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
pub mod causal_conv1d;
pub mod decay_gate;
mod error;
pub mod gated_delta_rule;
pub mod gated_rms_norm;
pub mod l2_norm;
mod ops;
mod outputs;
mod precision;
mod primitive;
mod recurrence;

pub use causal_conv1d::{
    CausalConv1dOptions, CausalConv1dOutput, ConvolutionSettings, SplitCausalConv1dOutput,
    tree_causal_conv1d, tree_causal_conv1d_split, try_tree_causal_conv1d,
    try_tree_causal_conv1d_split,
};
pub use decay_gate::{decay_gate, try_decay_gate};
pub use error::ArgumentError;
pub use gated_delta_rule::{
    GatedDeltaRuleError, GatedDeltaRuleImplementation, GatedDeltaRuleOptions, GatedDeltaRuleOutput,
    GatedDeltaRuleSettings, tree_gated_delta_rule, try_tree_gated_delta_rule,
};
pub use gated_rms_norm::{gated_rms_norm, try_gated_rms_norm};
pub use l2_norm::{l2_norm, try_l2_norm};
pub use ops::TreeSsmOps;
pub use recurrence::{
    ConvolutionPlan, ENTRY_ZERO, MAX_ROWS, MAX_WINDOW_ROWS, Readers, RecurrenceError,
    TreeRecurrence,
};
