//! Packs as Burn tensors.

#[cfg(feature = "dataset")]
mod batcher;
mod check;
mod error;
mod occurrences;
mod tree_batch;

#[cfg(feature = "dataset")]
pub use self::batcher::TreeBatcher;
pub use self::error::BatchError;
pub use self::occurrences::OccurrenceBatch;
pub use self::tree_batch::TreeBatch;
