//! Errors of batches.

use crate::occurrences::ColumnError;

/// Why a [`super::TreeBatch`] cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// A pack continues another one, but a batch has no past context.
    #[error(
        "row {row} of pack {pack} begins at depth {depth}, expected 0: its pack continues another \
         one (see step_gradients)"
    )]
    Continues {
        /// Index of the pack.
        pack: usize,
        /// The first root of the pack that does not begin a path.
        row: usize,
        /// Its depth.
        depth: u32,
    },
    /// Packs of different optimizer steps.
    #[error(
        "pack {pack} is of another optimizer step than pack {first}: its weights have another \
         denominator"
    )]
    OtherStep {
        /// Index of the pack.
        pack: usize,
        /// Index of the first pack whose step is known.
        first: usize,
    },
    /// The predictions of a pack.
    #[error("pack {pack}: {source}")]
    Occurrences {
        /// Index of the pack.
        pack: usize,
        /// The inconsistency.
        #[source]
        source: ColumnError,
    },
    /// A column of a pack's layout does not have one entry per token.
    #[error("pack {pack}: layout: {column}: got {found} entries, expected {expected}")]
    Layout {
        /// Index of the pack.
        pack: usize,
        /// The column.
        column: &'static str,
        /// Number of its entries.
        found: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// A pack has more tokens than its padded length.
    #[error("pack {pack}: padded_len is {padded_len}, expected at least {tokens}, its tokens")]
    PaddedLength {
        /// Index of the pack.
        pack: usize,
        /// Its tokens.
        tokens: usize,
        /// Its `padded_len`.
        padded_len: usize,
    },
    /// The batch has more rows than 32-bit indices allow.
    #[error("a batch of {rows} rows of {length} tokens exceeds the index range")]
    TooLarge {
        /// Number of packs.
        rows: usize,
        /// Tokens of each pack, including padding.
        length: usize,
    },
    /// The packs have different loss forms.
    #[error("packs {first} and {pack} of the batch have different forms of loss")]
    LossForm {
        /// Index of the pack.
        pack: usize,
        /// Index of the first pack that trains something.
        first: usize,
    },
    /// Only some of the packs have an input of the loss.
    #[error("only some packs of the batch carry {column}: pack {pack} has none")]
    MissingColumn {
        /// The input.
        column: &'static str,
        /// Index of the first pack without it.
        pack: usize,
    },
}
