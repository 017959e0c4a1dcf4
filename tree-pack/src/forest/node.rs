//! Nodes and trees of a forest.

use std::ops::Range;

/// Maximum number of rows of a forest or a pack: tensors store rows as signed 32-bit integers.
pub const MAX_ROWS: usize = i32::MAX as usize;

/// A run of tokens that the same trajectories share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// First row.
    pub start: u32,
    /// One past the last row.
    pub end: u32,
    /// One past the last row of the subtree.
    pub subtree_end: u32,
    /// One past the last node of the subtree.
    pub subtree_end_node: u32,
    /// The node before it on its paths; `None` at a root.
    pub parent: Option<u32>,
    /// Number of tokens before it on its paths.
    pub position: u32,
    /// First trajectory through the node, as an index in [`crate::PrefixForest::trajectories`].
    pub source: u32,
}

impl Node {
    /// Number of tokens; never 0.
    pub fn token_count(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// One tree of a forest: a root and its descendants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Its nodes.
    pub nodes: Range<u32>,
    /// Its rows.
    pub rows: Range<u32>,
}
