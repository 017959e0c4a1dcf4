//! Supervised fine-tuning.

use burn::tensor::Tensor;
use tree_pack::OccurrenceBatch;

use super::LossInputError;
use super::columns::Columns;
use burn_tree_nn::TokenLogProbs;

/// Supervised fine-tuning: `sum_i weights[i] * -log_probs[i]`, `[1]`.
///
/// The weights of `occurrences` contain the weighting of shared predictions and the denominator of
/// the whole optimizer step, so the losses of the packs of a step are summed, not averaged.
///
/// # Panics
/// With the text of [`LossInputError`] where [`try_sft_loss`] returns one.
pub fn sft_loss(output: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
    try_sft_loss(output, occurrences).unwrap_or_else(|error| panic!("sft_loss: {error}"))
}

/// [`sft_loss`] that returns an error if the arguments do not fit together.
///
/// # Errors
/// [`LossInputError`]: the log-probabilities are of another batch, a column has another length, or
/// the weights are f32 and the log-probabilities f64.
pub fn try_sft_loss(
    output: TokenLogProbs,
    occurrences: &OccurrenceBatch,
) -> Result<Tensor<1>, LossInputError> {
    let weights = Columns::of_any_form(&output, occurrences)?.weights()?;
    Ok((output.log_probs * weights).sum().neg())
}
