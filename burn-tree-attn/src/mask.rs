//! Who sees whom: one interval of query rows per key.

use burn::tensor::Device;
use tree_pack::TreeLayout;

/// Visibility of `M` keys to `N` queries in each of `B` rows: key `j` is visible to the queries
/// `key_start[j] <= i < key_end[j]`. Built once per batch and shared by all layers; cloning is cheap.
#[derive(Clone, Debug)]
pub struct TreeMask {}

impl TreeMask {
    /// The mask of a batch of layouts padded to `padded_len` rows; padding sees nothing.
    pub fn from_layouts(layouts: &[TreeLayout], padded_len: usize, device: &Device) -> Self {
        todo!("{} {padded_len} {device:?}", layouts.len())
    }
}
