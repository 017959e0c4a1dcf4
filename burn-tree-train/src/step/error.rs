//! What can be wrong with a step.

use burn::backend::ExecutionError;
use burn_tree_attn::TreeMaskError;
use thiserror::Error;
use tree_pack::PacksError;

use crate::LmHeadError;

/// A step that cannot be computed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StepError {
    /// The packs contradict themselves, or each other.
    #[error(transparent)]
    Packs(#[from] PacksError),
    /// A pack whose counts of trajectories, which the router's loss needs, are not one per row.
    #[error("pack {pack} has counts of trajectories for {found} rows, expected {expected}")]
    TrajectoryCounts {
        /// Index of the pack.
        pack: usize,
        /// Number of counts.
        found: usize,
        /// Number of rows.
        expected: usize,
    },
    /// A pack without rows, or with more than its length.
    #[error(
        "pack {pack} has {rows} rows and a padded length of {padded_len}, expected at least one row \
         and no fewer than those"
    )]
    Rows {
        /// Index of the pack.
        pack: usize,
        /// Rows of its layout.
        rows: usize,
        /// Its length with padding.
        padded_len: usize,
    },
    /// A pack's mask cannot be built.
    #[error("pack {pack}: {source}")]
    Mask {
        /// Index of the pack.
        pack: usize,
        /// What is wrong.
        source: TreeMaskError,
    },
    /// The head cannot project a pack's predictions.
    #[error("pack {pack}: {source}")]
    Head {
        /// Index of the pack.
        pack: usize,
        /// What is wrong.
        source: LmHeadError,
    },
    /// The device failed while tensors were copied to the host.
    #[error("the device failed: {0}")]
    Device(#[from] ExecutionError),
}
