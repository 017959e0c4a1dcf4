//! A layout with its predictions: one row of a batch.

use crate::{Occurrences, TreeLayout};

/// Trees laid out in one row within a token budget, and what is trained on them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pack {
    /// The tokens, each once.
    pub layout: TreeLayout,
    /// The predictions made from the rows of `layout`.
    pub occurrences: Occurrences,
    /// Row length including padding (`>= layout.len()`).
    pub padded_len: usize,
    /// The task of each tree of the pack, in row order.
    pub task_ids: Vec<String>,
}
