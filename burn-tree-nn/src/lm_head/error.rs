//! Errors of the arguments.

use burn::tensor::DType;

/// Arguments that [`token_log_probs`](super::token_log_probs) refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LmHeadError {
    /// The occurrences do not belong to the batch of the blocks.
    #[error("the occurrences belong to another batch than the context")]
    OtherBatch,
    /// The hidden states do not belong to the batch.
    #[error("the hidden states have [B, N] = {found:?} rows, expected {expected:?} as the batch")]
    Rows {
        /// `[B, N]` of the hidden states.
        found: [usize; 2],
        /// `[B, N]` of the batch of the occurrences.
        expected: [usize; 2],
    },
    /// A target is not below the number of rows of the head.
    #[error(
        "occurrence {occurrence} has target {target}, expected an id below {vocab}, the rows of the \
         head weight [vocab, hidden]"
    )]
    Target {
        /// Index of the occurrence.
        occurrence: usize,
        /// Its target.
        target: u32,
        /// Rows of the head weight.
        vocab: usize,
    },
    /// The hidden size of states and head differ.
    #[error(
        "the hidden states have {hidden} features, the head weight {head}, expected [vocab, hidden] \
         (a Burn Linear keeps [hidden, vocab]: transpose it)"
    )]
    HiddenSize {
        /// Features of the hidden states.
        hidden: usize,
        /// Features of the head weight.
        head: usize,
    },
    /// An occurrence names a row that does not exist.
    #[error("occurrence {occurrence} reads row {row}, but there are {hidden_rows} rows")]
    RowOutOfRange {
        /// Index of the occurrence.
        occurrence: usize,
        /// Its row.
        row: u32,
        /// Number of rows of the hidden states.
        hidden_rows: usize,
    },
    /// Occurrences are not in ascending order of row.
    #[error("occurrence {occurrence} reads row {row} after row {previous}; rows must ascend")]
    RowsNotAscending {
        /// Index of the occurrence.
        occurrence: usize,
        /// Its row.
        row: u32,
        /// Row of the occurrence before it.
        previous: u32,
    },
    /// Columns of an occurrence batch differ in length.
    #[error("{rows} rows but {targets} targets")]
    Columns {
        /// Number of rows.
        rows: usize,
        /// Number of targets.
        targets: usize,
    },
    /// `chunk_rows * vocab` does not fit into the index type.
    #[error("chunks of {chunk_rows} rows x {vocab} tokens exceed 2^31 - 1 logits")]
    ChunkTooLarge {
        /// Rows of a chunk.
        chunk_rows: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The dtype of a tensor or of the products is not a float of 16 to 64 bits.
    #[error("{argument} is {found:?}, expected f64, f32, f16 or bf16")]
    DType {
        /// The argument.
        argument: &'static str,
        /// Its dtype.
        found: DType,
    },
    /// A tensor is on another device than the hidden states.
    #[error("{tensor} is on {found}, expected {expected}, where hidden is")]
    Device {
        /// The tensor.
        tensor: &'static str,
        /// Its device.
        found: String,
        /// The device of the hidden states.
        expected: String,
    },
    /// The hidden states have no features.
    #[error("the hidden states have 0 features, expected at least 1")]
    NoFeatures,
    /// There are more rows or occurrences than the signed 32-bit indices of tensors allow.
    #[error("{rows} rows and {occurrences} occurrences, expected fewer than 2^31 of each")]
    TooMany {
        /// Number of rows of the hidden states.
        rows: usize,
        /// Number of occurrences.
        occurrences: usize,
    },
}
