//! What can be wrong with a batch of layouts.

use thiserror::Error;
use tree_pack::LayoutError;

use super::limits::{MAX_ROWS, MAX_WINDOW_ROWS};

/// A [`TreeRecurrence`](crate::TreeRecurrence) could not be built.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecurrenceError {
    /// No layouts, or rows of length zero.
    #[error("a tree recurrence needs at least one batch row and one row in it, got none")]
    EmptyBatch,
    /// More than [`MAX_ROWS`] rows.
    #[error("a batch of {batch_size} x {row_length} rows, expected at most {MAX_ROWS} in all")]
    TooManyRows {
        /// Number of layouts.
        batch_size: usize,
        /// Rows of each.
        row_length: usize,
    },
    /// A layout is longer than the rows it is to be padded to.
    #[error("batch row {batch}: the layout has {length} rows, expected at most {row_length}")]
    RowLength {
        /// Batch row.
        batch: usize,
        /// Rows of its layout.
        length: usize,
        /// Requested length.
        row_length: usize,
    },
    /// A layout contradicts itself.
    #[error("batch row {batch}: {source}")]
    Layout {
        /// Batch row.
        batch: usize,
        /// What is wrong.
        source: LayoutError,
    },
    /// A tree without an initial state begins below the first token of its path.
    #[error(
        "the tree of row {row} of batch row {batch} begins at depth {depth}, expected 0: its pack \
         continues another one, whose states TreeRecurrence::try_continuing takes"
    )]
    Continues {
        /// Batch row.
        batch: usize,
        /// The root.
        row: usize,
        /// Its depth on the path.
        depth: u32,
    },
    /// The list of initial states is not that of the trees.
    #[error("initial states are given for {found} roots, expected {expected} (one per root)")]
    RootStates {
        /// Length of the list.
        found: usize,
        /// Number of roots.
        expected: usize,
    },
    /// An initial state beyond those that all roots could use.
    #[error("root {root} starts from initial state {state}, expected an index below {roots}")]
    InitialState {
        /// Index of the root.
        root: usize,
        /// The index given.
        state: u32,
        /// Number of roots.
        roots: usize,
    },
    /// The state is asked for after a row that is not there.
    #[error("requested row {row} (at {index}) is padding or not one of the {rows} rows")]
    RequestedRow {
        /// Where in the list.
        index: usize,
        /// The row.
        row: u32,
        /// Number of rows, with padding.
        rows: usize,
    },
    /// The state after a row is asked for twice.
    #[error("requested row {row} (at {index}) was already named")]
    RepeatedRow {
        /// Where in the list, the second time.
        index: usize,
        /// The row.
        row: u32,
    },
    /// A window size out of range.
    #[error("windows of {found} rows, expected 1 to {MAX_WINDOW_ROWS}")]
    WindowRows {
        /// The size.
        found: usize,
    },
    /// A convolution that reads nothing, or whose lists cannot be indexed.
    #[error(
        "a convolution kernel of size {kernel_size} over {rows} rows, expected a size of at least 1 and lists of at most 2^31 - 1 numbers"
    )]
    KernelSize {
        /// Number of taps.
        kernel_size: usize,
        /// Number of rows, with padding.
        rows: usize,
    },
}
