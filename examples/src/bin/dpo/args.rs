//! The command line.

use std::path::PathBuf;

use burn_tree_train::objectives::{DpoOptions, PreferenceLoss};
use burn_tree_trainer::objective::Preference;
use burn_tree_trainer::options::{RunArgs, ValidationArgs};
use burn_tree_trainer::run::log_probs::LogProbSource;
use burn_tree_trainer::run::settings::Settings;
use clap::{Parser, ValueEnum};
use serde::Serialize;
use serde_json::json;
use tree_pack::PairRule;

/// Trains a language model on preferences between rollouts of a task (DPO, IPO), computing
/// every token that they share once.
///
/// Without --data a demonstration runs on the bundled recordings: a small model with random
/// weights is trained on trees and, beside it, on separate rollouts.
#[derive(Parser, Debug, Clone)]
#[command(name = "dpo", version)]
pub struct Args {
    /// What all training programs have.
    #[command(flatten)]
    pub run: RunArgs,
    /// The tasks held out.
    #[command(flatten)]
    pub validation: ValidationArgs,

    /// Pairs: JSON lines with task_id and the rollout ids chosen and rejected. If not given, pairs
    /// are made from rewards.
    #[arg(long, value_name = "FILE", help_heading = "Preferences")]
    pub pairs_file: Option<PathBuf>,
    /// Which rollouts of a task make pairs.
    #[arg(long, value_enum, default_value_t = Pairs::BestWorst, conflicts_with = "pairs_file", help_heading = "Preferences")]
    pub pairs: Pairs,
    /// Least difference of the rewards of a pair.
    #[arg(
        long,
        value_name = "REWARD",
        default_value_t = 0.0,
        conflicts_with = "pairs_file",
        help_heading = "Preferences"
    )]
    pub margin: f32,
    /// Where reference log-probabilities come from; the model is the one that training begins with.
    #[arg(long, value_enum, default_value_t = LogProbSource::Auto, help_heading = "Preferences")]
    pub ref_log_probs: LogProbSource,

    /// The loss of a pair.
    #[arg(long, value_enum, default_value_t = Loss::Sigmoid, help_heading = "Objective")]
    pub loss: Loss,
    /// Strength of the tie to the reference policy.
    #[arg(long, default_value_t = 0.1, help_heading = "Objective")]
    pub beta: f64,
    /// Share of preferences taken to be wrong, with the sigmoid loss.
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.0,
        help_heading = "Objective"
    )]
    pub label_smoothing: f64,
}

/// [`PairRule`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pairs {
    /// One pair a task: the first of the highest reward over the first of the lowest.
    BestWorst,
    /// Every rollout over every other one of lower reward.
    All,
}

impl From<Pairs> for PairRule {
    fn from(pairs: Pairs) -> Self {
        match pairs {
            Pairs::BestWorst => Self::BestOverWorst,
            Pairs::All => Self::All,
        }
    }
}

/// [`PreferenceLoss`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// DPO.
    Sigmoid,
    /// IPO.
    Ipo,
}

impl Args {
    /// The loss that the options ask for.
    pub fn options(&self) -> DpoOptions {
        DpoOptions {
            beta: self.beta,
            loss: match self.loss {
                Loss::Sigmoid => PreferenceLoss::Sigmoid {
                    label_smoothing: self.label_smoothing,
                },
                Loss::Ipo => PreferenceLoss::Ipo,
            },
        }
    }

    /// What else decides how the run goes.
    pub fn settings(&self, preference: &Preference) -> Settings {
        [
            ("objective", json!(format!("{:?}", self.options()))),
            ("pairs", json!(preference.pairs_by_chosen())),
            ("ref-log-probs", json!(self.ref_log_probs)),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
