//! One depth-first row of tokens: the layout every tree operation works on.

/// A run of rows that is contiguous both in the row and on its root-to-leaf paths
/// (one node of the compressed prefix tree).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First row.
    pub start: u32,
    /// One past the last row.
    pub end: u32,
    /// Index of the segment that holds the previous token of the path; `None` at a root.
    pub parent: Option<u32>,
}

/// `N` tokens of one or more prefix trees in depth-first order, each tree token once.
///
/// Row `j` is visible to row `i` exactly when `j <= i < subtree_ends[j]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeLayout {
    /// `[N]` token ids.
    pub tokens: Vec<u32>,
    /// `[N]` depth of the token on its path, 0 at a root.
    pub position_ids: Vec<u32>,
    /// `[N]` row of the previous token on the path, -1 at a root.
    pub parents: Vec<i32>,
    /// `[N]` one past the last row of the token's subtree.
    pub subtree_ends: Vec<u32>,
    /// Nodes in row order; they tile `0..N`.
    pub segments: Vec<Segment>,
}

impl TreeLayout {
    /// Number of rows, `N`.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the layout has no rows.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Number of (query, key) pairs in which the key is visible to the query: sum of
    /// `position_id + 1` over the rows.
    pub fn visible_pairs(&self) -> u64 {
        self.position_ids
            .iter()
            .map(|&depth| u64::from(depth) + 1)
            .sum()
    }
}
