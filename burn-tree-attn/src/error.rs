//! What can be wrong with the arguments, told before anything is computed.

use burn::tensor::DType;
use thiserror::Error;

use crate::Implementation;

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
        "batch row {batch}, key {key}: rows {start}..{end} are not an interval of the {queries} query rows"
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

/// [`try_tree_attention`](crate::try_tree_attention) refused its arguments.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum TreeAttentionError {
    /// A dimension differs from what the other arguments ask for.
    #[error("tree_attention: {tensor} has {dimension} {found}, expected {expected} ({reason})")]
    Shape {
        /// Name of the tensor.
        tensor: &'static str,
        /// Name of the dimension.
        dimension: &'static str,
        /// Its size.
        found: usize,
        /// Required size.
        expected: usize,
        /// Where the requirement comes from.
        reason: String,
    },
    /// Query heads cannot be shared out evenly among the key/value heads.
    #[error(
        "tree_attention: {query_heads} query heads are not a positive multiple of {kv_heads} key/value heads"
    )]
    Heads {
        /// Heads of the query.
        query_heads: usize,
        /// Heads of key and value.
        kv_heads: usize,
    },
    /// The head dimension is zero.
    #[error("tree_attention: the head dimension of {tensor} is 0, expected at least 1")]
    EmptyHead {
        /// Name of the tensor.
        tensor: &'static str,
    },
    /// Tensors of different element types.
    #[error("tree_attention: {tensor} is {found:?}, expected {expected:?} (the query's dtype)")]
    DType {
        /// Name of the tensor.
        tensor: &'static str,
        /// Its dtype.
        found: DType,
        /// The query's.
        expected: DType,
    },
    /// An element type that is not a float of 16 to 64 bits.
    #[error("tree_attention: dtype {found:?} is not supported, expected f64, f32, f16 or bf16")]
    UnsupportedDType {
        /// The query's dtype.
        found: DType,
    },
    /// Tensors or mask on different devices.
    #[error("tree_attention: {argument} is on {found}, expected {expected} (the query's device)")]
    Device {
        /// Name of the argument.
        argument: &'static str,
        /// Its device.
        found: String,
        /// The query's.
        expected: String,
    },
    /// An option out of its range.
    #[error("tree_attention: option `{option}` is {value}, expected {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        value: f64,
        /// What is allowed.
        expected: &'static str,
    },
    /// The requested implementation does not run these tensors.
    #[error("tree_attention: the {requested:?} implementation is not available: {reason}")]
    Implementation {
        /// What was asked for.
        requested: Implementation,
        /// What stands against it.
        reason: String,
    },
}

/// [`try_rope`](crate::try_rope) refused its arguments.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum RopeError {
    /// The number of rotated dimensions does not fit the head.
    #[error(
        "rope: rotary_dim is {rotary_dim}, expected an even number from 2 to the head dimension {head_dim}"
    )]
    RotaryDim {
        /// Requested number of rotated dimensions.
        rotary_dim: usize,
        /// Dimensions of a head.
        head_dim: usize,
    },
    /// The base of the angles is not a positive finite number.
    #[error("rope: theta is {theta}, expected a positive finite number")]
    Theta {
        /// The base.
        theta: f64,
    },
    /// The position ids are not `[B, N]` of the rotated tensor.
    #[error("rope: position_ids have shape {found:?}, expected {expected:?} ([B, N] of x)")]
    Positions {
        /// Their shape.
        found: [usize; 2],
        /// Required shape.
        expected: [usize; 2],
    },
    /// An element type that is not a float of 16 to 64 bits.
    #[error("rope: dtype {found:?} is not supported, expected f64, f32, f16 or bf16")]
    UnsupportedDType {
        /// Dtype of `x`.
        found: DType,
    },
    /// Position ids on another device than `x`.
    #[error("rope: position_ids are on {found}, expected {expected} (the device of x)")]
    Device {
        /// Device of the position ids.
        found: String,
        /// Device of `x`.
        expected: String,
    },
}
