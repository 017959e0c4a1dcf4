//! Limits of batches and windows, and numbers with a meaning of their own.

/// The largest (and default) number of rows of a window.
pub const MAX_WINDOW_ROWS: usize = 64;

/// Most rows of a batch with padding: all lists together can then be indexed by 32 bits.
pub const MAX_ROWS: usize = 1 << 28;

/// Where a state comes from, as a number: no state, which is zero.
pub const ENTRY_ZERO: i32 = -1;
