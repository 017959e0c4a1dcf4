//! What can be wrong with a step.

use burn::backend::ExecutionError;
use burn_tree_attn::TreeMaskError;
use thiserror::Error;
use tree_pack::{BatchError, PacksError, VocabularyError};

use crate::{BlockError, ParameterFailure};
use burn_tree_nn::LmHeadError;

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
    /// A pack cannot be uploaded.
    #[error("pack {pack}: {source}")]
    Batch {
        /// Index of the pack.
        pack: usize,
        /// What is wrong.
        source: BatchError,
    },
    /// A token id that the model does not have.
    #[error("{0} (rows of the head weight [vocab, hidden]; a Burn Linear keeps [hidden, vocab])")]
    Vocabulary(#[from] VocabularyError),
    /// A block failed, or did not leave what packs that continue this one need.
    #[error("block {block} of the model, in pack {pack}: {source}")]
    Block {
        /// Index of the block.
        block: usize,
        /// Index of the pack.
        pack: usize,
        /// What is wrong.
        source: BlockError,
    },
    /// The closure that computes the loss of a pack failed.
    #[error("the loss of pack {pack}: {source}")]
    Loss {
        /// Index of the pack.
        pack: usize,
        /// What it returned.
        source: BlockError,
    },
    /// The step would train nothing: no parameter gets a gradient.
    #[error("no parameter gets a gradient: {0}")]
    NoGradients(NoGradientsCause),
    /// The head cannot project a pack's predictions.
    #[error("pack {pack}: {source}")]
    Head {
        /// Index of the pack.
        pack: usize,
        /// What is wrong.
        source: LmHeadError,
    },
    /// The device could not compute a parameter before the step.
    #[error(transparent)]
    Parameter(#[from] ParameterFailure),
    /// The device failed while tensors were copied to the host.
    #[error("the device failed: {0}")]
    Device(#[from] ExecutionError),
}

/// Why a step has no gradients.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoGradientsCause {
    /// The model is on a device without autodiff, or is `valid()`.
    #[error("the model is on a device without autodiff, expected one of Device::autodiff")]
    NoAutodiff,
    /// No parameter requires a gradient.
    #[error("all parameters are frozen")]
    Frozen,
    /// No token of the step is trained.
    #[error("no token of the step is trained (every loss_mask is false)")]
    NothingTrained,
    /// The losses are constants.
    #[error("the losses do not depend on any trained parameter: were they detached?")]
    Detached,
}
