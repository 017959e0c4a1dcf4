//! Public functions: arguments are checked here, before anything is dispatched, because a panic
//! inside a deferred backend task would only be logged.

mod rope;
mod tree_attention;

pub use rope::{RopeConfig, rope, try_rope};
pub use tree_attention::{
    KeyValue, PastKeyValue, TreeAttentionOptions, tree_attention, tree_attention_with_past,
    try_tree_attention, try_tree_attention_with_past,
};

use burn::tensor::{DType, Device};

fn is_supported(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::F64 | DType::F32 | DType::Flex32 | DType::F16 | DType::BF16
    )
}

/// Whether both are the same device, apart from autodiff.
fn same_device(a: &Device, b: &Device) -> bool {
    a.clone().inner() == b.clone().inner()
}
