//! Log-probabilities, and whose they are.

use burn::tensor::Tensor;
use tree_pack::BatchId;

/// The result of [`token_log_probs`](super::token_log_probs), for each occurrence.
#[derive(Clone, Debug)]
pub struct TokenLogProbs {
    /// `[n]`: the natural logarithm of the probability of the target, in at least f32.
    pub log_probs: Tensor<1>,
    /// `[n]`: the entropy in nats of the row's distribution over the vocabulary, if asked for.
    pub entropy: Option<Tensor<1>>,
    /// The batch that they were computed for, so that a loss can refuse occurrences of another
    /// batch.
    pub(super) batch: Option<BatchId>,
}

impl TokenLogProbs {
    /// Log-probabilities `[n]`, and entropies `[n]` if any, that were computed elsewhere. A loss
    /// can compare only their number with its occurrences.
    pub fn new(log_probs: Tensor<1>, entropy: Option<Tensor<1>>) -> Self {
        Self {
            log_probs,
            entropy,
            batch: None,
        }
    }

    /// The batch that they were computed for; `None` after [`new`](Self::new).
    pub fn batch(&self) -> Option<BatchId> {
        self.batch
    }
}
