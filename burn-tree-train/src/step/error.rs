//! Errors of a step.

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
    /// The packs are inconsistent.
    #[error(transparent)]
    Packs(#[from] PacksError),
    /// A pack does not have one trajectory count per row, which the router loss needs.
    #[error("pack {pack} has {found} trajectory counts, expected {expected}, one per row")]
    TrajectoryCounts {
        /// Index of the pack.
        pack: usize,
        /// Number of counts.
        found: usize,
        /// Number of rows.
        expected: usize,
    },
    /// A pack has no rows, or more rows than its padded length.
    #[error(
        "pack {pack} has {rows} rows and a padded length of {padded_len}, expected at least one \
         row and a padded length of at least the rows"
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
        /// The cause.
        source: TreeMaskError,
    },
    /// A pack cannot be uploaded.
    #[error("pack {pack}: {source}")]
    Batch {
        /// Index of the pack.
        pack: usize,
        /// The cause.
        source: BatchError,
    },
    /// A token id is not in the vocabulary of the model.
    #[error("{0} (rows of the head weight [vocab, hidden]; Burn's Linear stores [hidden, vocab])")]
    Vocabulary(#[from] VocabularyError),
    /// A block failed, or did not return the outputs that later packs need.
    #[error("block {block} of the model, in pack {pack}: {source}")]
    Block {
        /// Index of the block.
        block: usize,
        /// Index of the pack.
        pack: usize,
        /// The cause.
        source: BlockError,
    },
    /// The closure that computes the loss of a pack failed.
    #[error("loss of pack {pack}: {source}")]
    Loss {
        /// Index of the pack.
        pack: usize,
        /// The error of the closure.
        source: BlockError,
    },
    /// The step would train nothing: no parameter gets a gradient.
    #[error("no parameter gets a gradient: {0}")]
    NoGradients(NoGradientsCause),
    /// The head cannot project the predictions of a pack.
    #[error("pack {pack}: {source}")]
    Head {
        /// Index of the pack.
        pack: usize,
        /// The cause.
        source: LmHeadError,
    },
    /// The device could not compute a parameter before the step.
    #[error(transparent)]
    Parameter(#[from] ParameterFailure),
    /// The device failed while tensors were copied to the host.
    #[error("the device failed: {0}")]
    Device(#[from] ExecutionError),
}

/// Why no parameter gets a gradient.
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
    /// The losses do not depend on a trained parameter.
    #[error("the losses do not depend on a trained parameter (they may have been detached)")]
    Detached,
}
