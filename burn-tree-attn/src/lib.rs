//! Tree attention and rotary position embeddings at given positions, as Burn operations.
//!
//! A tree of sequences with shared prefixes is laid out as one row of tokens in depth-first order.
//! [`tree_attention`] lets every token see its ancestors and itself, [`rope`] gives it the position
//! it has on its own path: each token gets the result that it would have had alone on its path.
//!
//! Both are operations of a backend extension, [`TreeAttentionOps`]: any Burn backend runs them
//! from its primitives, and some have faster implementations of their own.

#![warn(missing_docs)]
#![cfg_attr(any(feature = "tch", feature = "ndarray"), allow(deprecated))]

#[cfg(test)]
extern crate self as burn_tree_attn;

mod backends;
mod error;
mod functions;
mod generic;
#[cfg(feature = "cubecl-backend")]
mod kernels;
mod mask;
#[cfg(feature = "flex")]
mod native;
mod ops;
pub mod reference;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
mod visibility;

pub use burn_tree_kit::implementation::Implementation;
pub use error::{RopeError, TreeAttentionError, TreeMaskError};
pub use functions::{
    KeyValue, PastKeyValue, RopeConfig, TreeAttentionOptions, rope, tree_attention,
    tree_attention_with_past, try_rope, try_tree_attention, try_tree_attention_with_past,
};
pub use mask::{KeyIntervals, PastKeys, TreeMask};
pub use ops::{AttentionSettings, RopeDirection, RopePairing, RopeSettings, TreeAttentionOps};
pub use visibility::{KeySpan, Tile, TilePlan, Visibility};
