//! Preference optimisation: DPO and its variants on pairs of trajectories.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use burn::tensor::Tensor;
use burn_tree_nn::TokenLogProbs;
use burn_tree_train::losses::{Dpo, DpoOptions, DpoStatistics, LossInputError};
use tree_pack::{OccurrenceBatch, PackedStep, PreferencePair, StepTrajectory};

use super::{Metrics, StepLoss, TrainingLoss, TrajectoryPacks};

/// A preference loss on pairs of trajectories.
#[derive(Clone, Debug, PartialEq)]
pub struct Preference {
    /// For every preferred trajectory of the data set, by index, those it is preferred to.
    pairs: Arc<BTreeMap<usize, Vec<usize>>>,
    options: DpoOptions,
}

impl Preference {
    /// Pairs of trajectories, given by their indices in the data set; both are of one task.
    pub fn new(pairs: &[PreferencePair], options: DpoOptions) -> Self {
        let mut by_chosen = BTreeMap::<usize, Vec<usize>>::new();
        for pair in pairs {
            by_chosen
                .entry(pair.chosen)
                .or_default()
                .push(pair.rejected);
        }
        Self {
            pairs: Arc::new(by_chosen),
            options,
        }
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.values().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// For every preferred trajectory of the data set, by index, those it is preferred to.
    pub fn pairs_by_chosen(&self) -> &BTreeMap<usize, Vec<usize>> {
        &self.pairs
    }

    /// Checks the options, and the pairs on one step of all data, packed as the steps of the run.
    /// After this check, no step of the run can fail in [`Dpo::new`].
    ///
    /// # Errors
    /// [`LossInputError`]
    pub fn check(&self, all: &PackedStep) -> Result<(), LossInputError> {
        Dpo::new(&all.trajectories, &self.pairs_of(all), self.options)?;
        Ok(())
    }

    fn pairs_of(&self, step: &PackedStep) -> Vec<PreferencePair> {
        let of_trajectory = |entry: &StepTrajectory| {
            let chosen = entry.data_index as usize;
            let rejected = self.pairs.get(&chosen).into_iter().flatten();
            rejected.map(move |&rejected| PreferencePair { chosen, rejected })
        };
        step.trajectories.iter().flat_map(of_trajectory).collect()
    }
}

impl TrainingLoss for Preference {
    type StepLoss = PreferenceStepLoss;
    const SHOWN: &'static [&'static str] = &["accuracy", "reward_margin"];

    fn step_loss(&self, step: &PackedStep) -> PreferenceStepLoss {
        let pairs = self.pairs_of(step);
        let dpo = Dpo::new(&step.trajectories, &pairs, self.options);
        PreferenceStepLoss {
            dpo: dpo.unwrap_or_else(|error| panic!("{error}, after Preference::check")),
            first_pass: !are_together(&pairs, step),
        }
    }
}

/// Whether the predictions of each pair are in one pack.
fn are_together(pairs: &[PreferencePair], step: &PackedStep) -> bool {
    let entries = step.trajectories.iter().enumerate();
    let numbers: HashMap<usize, usize> = entries
        .map(|(number, entry)| (entry.data_index as usize, number))
        .collect();
    let packs = TrajectoryPacks::new(step);
    let together =
        |pair: &PreferencePair| packs.is_together(numbers[&pair.chosen], numbers[&pair.rejected]);
    pairs.iter().all(together)
}

/// The loss of [`Preference`] on one step.
pub struct PreferenceStepLoss {
    dpo: Dpo,
    first_pass: bool,
}

impl StepLoss for PreferenceStepLoss {
    fn needs_first_pass(&self) -> bool {
        self.first_pass
    }

    fn collect(&mut self, log_probs: &TokenLogProbs, occurrences: &OccurrenceBatch) {
        self.dpo.collect(log_probs, occurrences);
    }

    fn of_pack(&mut self, log_probs: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
        if !self.first_pass {
            self.collect(&log_probs, occurrences);
        }
        self.dpo.loss(log_probs, occurrences)
    }

    fn metrics(self) -> Metrics {
        let statistics = self.dpo.statistics();
        let DpoStatistics {
            pairs,
            loss: _,
            accuracy,
            reward_margin,
            chosen_reward,
            rejected_reward,
        } = statistics.unwrap_or_else(|error| panic!("{error}"));
        [
            ("pairs", pairs as f64),
            ("accuracy", accuracy),
            ("reward_margin", reward_margin),
            ("chosen_reward", chosen_reward),
            ("rejected_reward", rejected_reward),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into()
    }
}
