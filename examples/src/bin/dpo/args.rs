//! The command line.

use std::path::PathBuf;

use burn_tree_train::losses::{DpoOptions, PreferenceLoss};
use burn_tree_trainer::loss::Preference;
use burn_tree_trainer::options::{RunArgs, ValidationArgs};
use burn_tree_trainer::run::log_probs::LogProbSource;
use burn_tree_trainer::run::settings::Settings;
use clap::{Parser, ValueEnum};
use serde::Serialize;
use serde_json::json;
use tree_pack::PairRule;

/// Trains a language model on preferences between rollouts of a task (DPO, IPO). Prefixes that they
/// share are computed once.
///
/// Without --data, a demonstration trains a small random model on bundled recordings, on trees and
/// side by side on separate rollouts.
#[derive(Parser, Debug, Clone)]
#[command(name = "dpo", version)]
pub struct Args {
    /// Options common to all training programs.
    #[command(flatten)]
    pub run: RunArgs,
    /// Options of the validation.
    #[command(flatten)]
    pub validation: ValidationArgs,

    /// Pairs: JSON lines with task_id and the rollout ids chosen and rejected. Default: pairs from
    /// rewards.
    #[arg(long, value_name = "FILE", help_heading = "Preferences")]
    pub pairs_file: Option<PathBuf>,
    /// Rule for pairs from rewards.
    #[arg(
        long,
        value_enum,
        default_value_t = Pairs::BestWorst,
        conflicts_with = "pairs_file",
        help_heading = "Preferences"
    )]
    pub pairs: Pairs,
    /// Smallest difference of the rewards of a pair.
    #[arg(
        long,
        value_name = "REWARD",
        default_value_t = 0.0,
        conflicts_with = "pairs_file",
        help_heading = "Preferences"
    )]
    pub margin: f32,
    /// Source of the reference log-probabilities; model is the initial model.
    #[arg(long, value_enum, default_value_t = LogProbSource::Auto, help_heading = "Preferences")]
    pub ref_log_probs: LogProbSource,

    /// The loss of a pair.
    #[arg(long, value_enum, default_value_t = Loss::Sigmoid, help_heading = "Loss")]
    pub loss: Loss,
    /// Strength of the penalty on deviations from the reference policy.
    #[arg(long, default_value_t = 0.1, help_heading = "Loss")]
    pub beta: f64,
    /// Assumed share of wrong preferences, for the sigmoid loss.
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.0,
        help_heading = "Loss"
    )]
    pub label_smoothing: f64,
}

/// [`PairRule`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pairs {
    /// One pair per task: the first rollout with the highest reward over the first with the lowest.
    BestWorst,
    /// Every rollout over every other one with a lower reward.
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
    /// The loss selected by the options.
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

    /// The program's own settings that affect the results.
    pub fn settings(&self, preference: &Preference) -> Settings {
        [
            ("loss", json!(format!("{:?}", self.options()))),
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
