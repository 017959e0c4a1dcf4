//! Preference optimisation: DPO and its relatives on pairs of trajectories.

use std::collections::HashMap;
use std::sync::Arc;

use burn::tensor::Tensor;
use burn_tree_train::TokenLogProbs;
use burn_tree_train::objectives::{Dpo, DpoOptions, DpoStatistics};
use tree_pack::{OccurrenceBatch, PackedStep, PreferencePair};

use super::{Metrics, Objective, Spread, StepLoss};

/// The loss of the pairs of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Preference {
    /// Pairs of the whole data set, by index. No pair has its trajectories in different tasks.
    pub pairs: Arc<Vec<PreferencePair>>,
    /// Which loss.
    pub options: DpoOptions,
}

impl Objective for Preference {
    type Loss = PreferenceStep;
    const SHOWN: &'static [&'static str] = &["accuracy", "reward_margin"];

    fn loss(&self, step: &PackedStep) -> PreferenceStep {
        let dpo = Dpo::new(&step.trajectories, &self.pairs, self.options);
        PreferenceStep {
            // Options and pairs are checked before the run begins.
            dpo: dpo.unwrap_or_else(|error| panic!("{error}")),
            first_pass: !self.pairs_are_together(step),
        }
    }
}

impl Preference {
    fn pairs_are_together(&self, step: &PackedStep) -> bool {
        let entries = step.trajectories.iter().enumerate();
        let numbers: HashMap<usize, usize> = entries
            .map(|(number, entry)| (entry.data_index as usize, number))
            .collect();
        let spread = Spread::new(step);
        self.pairs.iter().all(|pair| {
            match (numbers.get(&pair.chosen), numbers.get(&pair.rejected)) {
                (Some(&chosen), Some(&rejected)) => spread.is_together(chosen, rejected),
                _ => true,
            }
        })
    }
}

/// [`Preference`] on one step.
pub struct PreferenceStep {
    dpo: Dpo,
    first_pass: bool,
}

impl StepLoss for PreferenceStep {
    fn needs_first_pass(&self) -> bool {
        self.first_pass
    }

    fn collect(&mut self, log_probs: &Tensor<1>, occurrences: &OccurrenceBatch) {
        self.dpo.collect(log_probs, occurrences);
    }

    fn of_pack(&mut self, log_probs: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
        if !self.first_pass {
            self.collect(&log_probs.log_probs, occurrences);
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
