//! Attention over a tree.

pub(crate) mod autodiff;
mod check;
pub(crate) mod dims;
mod function;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernels;
#[cfg(feature = "flex")]
pub(crate) mod native;
pub(crate) mod options;
pub(crate) mod reference;

pub use function::{
    KeyValue, PastKeyValue, tree_attention, tree_attention_with_past, try_tree_attention,
    try_tree_attention_with_past,
};
pub use options::{AttentionSettings, TreeAttentionOptions};
