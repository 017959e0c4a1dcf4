//! Tree attention and rotary position embeddings at given positions, as Burn operations.
//!
//! A tree of sequences with shared prefixes is laid out as one row of tokens in depth-first order.
//! [`tree_attention()`] lets every token see its ancestors and itself, [`rope()`] gives it the position
//! it has on its own path: each token gets the result that it would have had alone on its path.
//!
//! Both are operations of a backend extension, [`TreeAttentionOps`]: any Burn backend runs them
//! from its primitives, and some have faster implementations of their own.

#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(any(feature = "tch", feature = "ndarray"), allow(deprecated))]

#[cfg(test)]
extern crate self as burn_tree_attn;

mod backends;
#[cfg(all(test, feature = "flex"))]
mod calls;
#[cfg(feature = "cubecl-backend")]
mod launch;
mod mask;
mod ops;
mod primitive;
mod rope;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
mod tree_attention;

pub use burn_tree_kit::check::ArgumentError;
pub use burn_tree_kit::implementation::Implementation;
pub use mask::{
    KeyIntervals, KeySpan, PastKeys, Tile, TilePlan, TreeMask, TreeMaskError, Visibility,
};
pub use ops::TreeAttentionOps;
pub use rope::{
    Llama3Scaling, RopeConfig, RopeDirection, RopePairing, RopeScaling, RopeSettings, YarnScaling,
    rope, try_rope,
};
pub use tree_attention::{
    AttentionSettings, KeyValue, PastKeyValue, TreeAttentionOptions, tree_attention,
    tree_attention_with_past, try_tree_attention, try_tree_attention_with_past,
};

/// The operations by their definitions, one line per formula, with dense `N x M` masks: for
/// reading, and for tests to compare with. Gradients come from Burn's autodiff.
pub mod reference {
    pub use crate::rope::reference::rope;
    pub use crate::tree_attention::reference::{dense_mask, tree_attention};
}
