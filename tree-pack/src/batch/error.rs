//! Why packs are no batch.

use crate::occurrences::ColumnError;

/// Why packs do not become a [`super::TreeBatch`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// A pack goes on where another one ends, but a batch has nothing before its rows.
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
        /// What is wrong.
        #[source]
        source: ColumnError,
    },
    /// A column of the layout of a pack does not have one entry a token.
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
    /// A pack has more tokens than its row has places.
    #[error("pack {pack}: a pack of {tokens} tokens has padded_len {padded_len}")]
    PaddedLength {
        /// Index of the pack.
        pack: usize,
        /// Its tokens.
        tokens: usize,
        /// Its `padded_len`.
        padded_len: usize,
    },
    /// There are more rows than can be counted.
    #[error("a batch of {rows} rows of {length} tokens exceeds the index range")]
    TooLarge {
        /// Packs.
        rows: usize,
        /// Tokens of each, padding included.
        length: usize,
    },
    /// A pack was made for another form of loss.
    #[error("the packs of the batch were made for different forms of loss: see {pack} and {first}")]
    LossForm {
        /// Index of the pack.
        pack: usize,
        /// Index of the first pack that trains something.
        first: usize,
    },
    /// An input of the loss that only some of the packs have.
    #[error("only some packs of the batch carry {column}: pack {pack} has none")]
    MissingColumn {
        /// The input.
        column: &'static str,
        /// Index of the first pack without it.
        pack: usize,
    },
}
