//! Losses of one batch; those of all batches of an optimizer step add up to the loss of the step.

use burn::tensor::Tensor;
use tree_pack::OccurrenceBatch;

/// Supervised fine-tuning: `sum_i weights[i] * -log_probs[i]`, `[1]`.
///
/// The weights of `occurrences` already contain how shared predictions count and the denominator
/// of the whole optimizer step, so batches of one step are added, never averaged.
pub fn sft_loss(log_probs: Tensor<1>, occurrences: &OccurrenceBatch) -> Tensor<1> {
    let weights = occurrences.weights.clone().cast(log_probs.dtype());
    (log_probs * weights).sum().neg()
}
