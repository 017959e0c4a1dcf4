//! What a run minimises, as the machinery of a step sees it.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use burn_tree_train::{TokenLogProbs, sft_loss};
use tree_pack::{OccurrenceBatch, PackedStep};

/// What an objective measures in a step, by name.
pub type Metrics = BTreeMap<String, f64>;

/// An objective of optimizer steps.
pub trait Objective {
    /// Its loss of one step.
    type Loss: StepLoss;
    /// The metrics that are shown while the run trains, and drawn.
    const SHOWN: &'static [&'static str];

    /// Whether old log-probabilities are those of the model at the beginning of each batch, to be
    /// computed before its first step.
    fn computes_old_log_probs(&self) -> bool {
        false
    }

    /// Whether the loss of this step needs log-probabilities of all its packs before the first of
    /// them can be trained: because it is made of sums over trajectories, and they are spread over
    /// packs.
    fn needs_first_pass(&self, _step: &PackedStep) -> bool {
        false
    }

    /// The loss of a step. `first_pass` has the log-probabilities of the occurrences of every pack
    /// under the model as it is before the step, if they were asked for.
    fn loss(&self, step: &PackedStep, first_pass: Option<Vec<Tensor<1>>>) -> Self::Loss;

    /// Against what deviations of the loss are measured, where the loss itself may be near 0 because
    /// terms of both signs cancel.
    fn scale(&self, _step: &PackedStep) -> Option<f64> {
        None
    }
}

/// The loss of one optimizer step, pack by pack.
pub trait StepLoss {
    /// The part of the loss that comes from pack `pack` of the step, `[1]`; the parts are added.
    fn of_pack(
        &mut self,
        pack: usize,
        log_probs: TokenLogProbs,
        occurrences: &OccurrenceBatch,
    ) -> Tensor<1>;

    /// What was measured on the packs. Waits for the device.
    fn metrics(self) -> Metrics;
}

/// Weighted negative log-likelihood.
#[derive(Clone, Copy, Debug)]
pub struct Supervised;

impl Objective for Supervised {
    type Loss = Self;
    const SHOWN: &'static [&'static str] = &[];

    fn loss(&self, _: &PackedStep, _: Option<Vec<Tensor<1>>>) -> Self {
        *self
    }
}

impl StepLoss for Supervised {
    fn of_pack(
        &mut self,
        _: usize,
        log_probs: TokenLogProbs,
        occurrences: &OccurrenceBatch,
    ) -> Tensor<1> {
        sft_loss(log_probs.log_probs, occurrences)
    }

    fn metrics(self) -> Metrics {
        Metrics::new()
    }
}
