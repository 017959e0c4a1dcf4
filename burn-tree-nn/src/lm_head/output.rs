//! Log-probabilities and their batch.

use burn::tensor::Tensor;
use tree_pack::BatchId;

/// The result of [`token_log_probs`](super::token_log_probs), for each occurrence.
#[derive(Clone, Debug)]
pub struct TokenLogProbs {
    /// `[n]`: the natural logarithm of the probability of the target, in at least f32.
    pub log_probs: Tensor<1>,
    /// `[n]`: the entropy in nats of the row's distribution over the vocabulary, if requested.
    pub entropy: Option<Tensor<1>>,
    /// The batch of the occurrences, so that a loss can refuse occurrences of another batch.
    pub(super) batch: Option<BatchId>,
}

impl TokenLogProbs {
    /// Log-probabilities `[n]`, and optional entropies `[n]`, from another source. A loss can only
    /// compare their number with that of its occurrences.
    pub fn new(log_probs: Tensor<1>, entropy: Option<Tensor<1>>) -> Self {
        Self {
            log_probs,
            entropy,
            batch: None,
        }
    }

    /// The batch of the occurrences; `None` after [`new`](Self::new).
    pub fn batch(&self) -> Option<BatchId> {
        self.batch
    }
}
