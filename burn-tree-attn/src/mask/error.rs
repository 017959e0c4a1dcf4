//! Why a mask could not be built.

use thiserror::Error;

/// A [`TreeMask`](crate::TreeMask) could not be built.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TreeMaskError {
    /// The batch holds no rows, or rows of length zero.
    #[error("a tree mask needs at least one batch row and one query row, got none")]
    EmptyBatch,
    /// Fewer keys than queries, though every query row has a key of its own.
    #[error("{keys} keys for {queries} query rows, expected at least as many keys as rows")]
    FewKeys {
        /// Number of keys, `M`.
        keys: usize,
        /// Number of query rows, `N`.
        queries: usize,
    },
    /// The arrays describing past keys are for another number of batch rows.
    #[error("past keys are given for {found} batch rows, expected {expected} (one per layout)")]
    PastBatch {
        /// Number of `PastKeys` given.
        found: usize,
        /// Number of layouts.
        expected: usize,
    },
    /// A layout is longer than the rows it is to be padded to.
    #[error(
        "batch row {batch}: the layout has {len} tokens, more than the padded length {padded_len}"
    )]
    PaddedLength {
        /// Batch row.
        batch: usize,
        /// Tokens of its layout.
        len: usize,
        /// Requested length.
        padded_len: usize,
    },
    /// Two arrays that describe the same rows or keys differ in length.
    #[error("batch row {batch}: `{field}` has {found} entries, expected {expected}")]
    Length {
        /// Batch row.
        batch: usize,
        /// Name of the array.
        field: &'static str,
        /// Its length.
        found: usize,
        /// The length that the other arrays ask for.
        expected: usize,
    },
    /// An interval of query rows that ends before it starts or beyond the last row.
    #[error(
        "batch row {batch}, key {key}: rows {start}..{end} are not an interval of the {queries} \
         query rows"
    )]
    Interval {
        /// Batch row.
        batch: usize,
        /// Key index.
        key: usize,
        /// First row that sees the key.
        start: u32,
        /// One past the last row that sees it.
        end: u32,
        /// Number of query rows.
        queries: usize,
    },
    /// The tree of a root continues one of another pack, whose keys are missing: its rows would not
    /// see them.
    #[error(
        "batch row {batch}: the tree of row {row} begins at depth {depth}, expected 0: its pack \
         continues another one (past keys are given to TreeMask::with_past_keys; step_gradients \
         does it)"
    )]
    Continues {
        /// Batch row.
        batch: usize,
        /// Row of the root.
        row: usize,
        /// Its depth.
        depth: u32,
    },
    /// A root that continues a tree sees more or fewer past keys than it has ancestors.
    #[error(
        "batch row {batch}: the tree of row {row} begins at depth {depth}, but {found} past keys \
         are visible to that row, expected {depth} (one for each ancestor)"
    )]
    Ancestors {
        /// Batch row.
        batch: usize,
        /// Row of the root.
        row: usize,
        /// Its depth: the number of its ancestors.
        depth: u32,
        /// Number of past keys that it sees.
        found: usize,
    },
    /// A length or position that a 32-bit signed integer tensor cannot hold.
    #[error("batch row {batch}: `{field}` is {value}, more than the supported {max}")]
    TooLarge {
        /// Batch row.
        batch: usize,
        /// Name of the value.
        field: &'static str,
        /// The value.
        value: u64,
        /// Largest supported value.
        max: u64,
    },
}
