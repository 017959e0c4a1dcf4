//! The losses of the programs, as traits and implementations on top of those of `burn-tree-train`.

mod policy;
mod preference;
mod supervised;
mod trajectory_packs;

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use burn_tree_nn::TokenLogProbs;
use tree_pack::{OccurrenceBatch, PackedStep, Trajectory};

pub use policy::{Policy, PolicyLoss, PolicyStepLoss};
pub use preference::{Preference, PreferenceStepLoss};
pub use supervised::Supervised;
pub use trajectory_packs::TrajectoryPacks;

/// Values that a loss measures in a step, by name.
pub type Metrics = BTreeMap<String, f64>;

/// The loss that a run trains with: creates the [`StepLoss`] of each step.
pub trait TrainingLoss {
    /// The loss of one step.
    type StepLoss: StepLoss;
    /// Names of the metrics that are printed after each step and plotted.
    const SHOWN: &'static [&'static str];

    /// Whether the old log-probabilities are computed with the model at the beginning of each
    /// batch, before the first step of the batch.
    fn computes_old_log_probs(&self) -> bool {
        false
    }

    /// The loss of a step.
    fn step_loss(&self, step: &PackedStep) -> Self::StepLoss;

    /// The scale of the loss, for relative deviations, where the loss itself may be near 0 because
    /// terms of both signs cancel.
    fn scale(&self, _step: &PackedStep) -> Option<f64> {
        None
    }

    /// Metrics of the trajectories of a step, in addition to those of [`StepLoss::metrics`].
    fn data_metrics(&self, _step: &PackedStep, _data: &[Trajectory]) -> Metrics {
        Metrics::new()
    }
}

/// The loss of one optimizer step, pack by pack.
///
/// A step loss returns no errors: options and data are checked before a run begins.
pub trait StepLoss {
    /// Whether all packs must be [collected](StepLoss::collect) before the loss of the first one
    /// is computed: if the loss needs sums over trajectories whose predictions are in several
    /// packs.
    fn needs_first_pass(&self) -> bool {
        false
    }

    /// Collects the log-probabilities of a pack under the model before the update.
    fn collect(&mut self, _log_probs: &TokenLogProbs, _occurrences: &OccurrenceBatch) {}

    /// The contribution of a pack to the loss, `[1]`. The loss of the step is the sum over its
    /// packs.
    fn of_pack(&mut self, log_probs: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1>;

    /// The metrics of the packs seen so far. Waits for the device.
    fn metrics(self) -> Metrics;
}
