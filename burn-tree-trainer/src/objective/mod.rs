//! What a run minimises, as the machinery of a step sees it.

mod policy;
mod preference;
mod spread;
mod supervised;

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use burn_tree_nn::TokenLogProbs;
use tree_pack::{OccurrenceBatch, PackedStep, Trajectory};

pub use policy::{Policy, PolicyLoss, PolicyStep};
pub use preference::{Preference, PreferenceStep};
pub use spread::Spread;
pub use supervised::Supervised;

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

    /// The loss of a step.
    fn loss(&self, step: &PackedStep) -> Self::Loss;

    /// Against what deviations of the loss are measured, where the loss itself may be near 0
    /// because terms of both signs cancel.
    fn scale(&self, _step: &PackedStep) -> Option<f64> {
        None
    }

    /// What is to be reported of the trajectories of a step, besides what its loss measures.
    fn describe(&self, _step: &PackedStep, _data: &[Trajectory]) -> Metrics {
        Metrics::new()
    }
}

/// The loss of one optimizer step, pack by pack.
///
/// A loss cannot fail: options and data are refused before a run begins, by the check of an
/// objective and by the reader, and what a step carries is what it was packed with.
pub trait StepLoss {
    /// Whether all packs have to be [collected](StepLoss::collect) before the loss of the first:
    /// where it is made of sums over trajectories that are spread over packs.
    fn needs_first_pass(&self) -> bool {
        false
    }

    /// Takes the log-probabilities of a pack, under the model as it is before the step.
    fn collect(&mut self, _log_probs: &TokenLogProbs, _occurrences: &OccurrenceBatch) {}

    /// The part of the loss that comes from a pack, `[1]`; the parts are added.
    fn of_pack(&mut self, log_probs: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1>;

    /// What was measured on the packs. Waits for the device.
    fn metrics(self) -> Metrics;
}
