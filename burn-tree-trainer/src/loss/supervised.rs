//! Supervised fine-tuning.

use burn::tensor::Tensor;
use burn_tree_nn::TokenLogProbs;
use burn_tree_train::sft_loss;
use tree_pack::{OccurrenceBatch, PackedStep};

use super::{Metrics, StepLoss, TrainingLoss};

/// The weighted negative log-likelihood.
#[derive(Clone, Copy, Debug)]
pub struct Supervised;

impl TrainingLoss for Supervised {
    type StepLoss = Self;
    const SHOWN: &'static [&'static str] = &[];

    fn step_loss(&self, _: &PackedStep) -> Self {
        *self
    }
}

impl StepLoss for Supervised {
    fn of_pack(&mut self, log_probs: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
        sft_loss(log_probs, occurrences)
    }

    fn metrics(self) -> Metrics {
        Metrics::new()
    }
}
