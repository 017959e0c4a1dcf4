//! The command line.

use std::num::NonZeroUsize;

use anyhow::Result;
use burn_tree_nn::EntropyOutput;
use burn_tree_train::losses::{
    ClipRange, Gspo, GspoOptions, KlEstimator, KlPenalty, PpoOptions, Regularization,
};
use burn_tree_trainer::data::rollouts::AdvantageSource;
use burn_tree_trainer::loss::PolicyLoss;
use burn_tree_trainer::options::RunArgs;
use burn_tree_trainer::plan::StepOrder;
use burn_tree_trainer::run::log_probs::LogProbSource;
use burn_tree_trainer::run::settings::Settings;
use clap::{Parser, ValueEnum};
use serde::Serialize;
use serde_json::json;
use tree_pack::Aggregation;

/// Trains a language model on rollouts with rewards (GRPO, PPO's clipped surrogate, GSPO). Prefixes
/// that rollouts of a task share are computed once.
///
/// Without --data, a demonstration trains a small random model on bundled recordings, on trees and
/// side by side on separate rollouts.
#[derive(Parser, Debug, Clone)]
#[command(name = "grpo", version)]
pub struct Args {
    /// Options common to all training programs.
    #[command(flatten)]
    pub run: RunArgs,

    /// Tasks per batch of rollouts, at whose beginning old log-probabilities are computed [default:
    /// --tasks-per-step].
    #[arg(long, value_name = "TASKS", help_heading = "Rollouts")]
    pub tasks_per_batch: Option<NonZeroUsize>,
    /// Passes over each batch, in steps of --tasks-per-step tasks.
    #[arg(
        long,
        value_name = "PASSES",
        default_value = "2",
        help_heading = "Rollouts"
    )]
    pub passes_per_batch: NonZeroUsize,
    /// Advantages from the rewards of the rollouts of a task: standardized (GRPO), centered (no
    /// division by the standard deviation) or leave-one-out; or read from the data: data.
    #[arg(
        long,
        value_name = "ESTIMATOR",
        default_value = "standardized",
        help_heading = "Rollouts"
    )]
    pub advantages: AdvantageSource,
    /// Drop tasks whose rollouts all have the same reward.
    #[arg(long, help_heading = "Rollouts")]
    pub drop_uniform: bool,
    /// Source of the old log-probabilities.
    #[arg(long, value_enum, default_value_t = LogProbSource::Auto, help_heading = "Rollouts")]
    pub old_log_probs: LogProbSource,
    /// Source of the reference log-probabilities for the KL penalty; model is the initial model.
    #[arg(long, value_enum, default_value_t = LogProbSource::Auto, help_heading = "Rollouts")]
    pub ref_log_probs: LogProbSource,

    /// Ratio of new to old probabilities that is clipped.
    #[arg(long, value_enum, default_value_t = Ratio::Token, help_heading = "Loss")]
    pub ratio: Ratio,
    /// The ratio is clipped below 1 minus this [default: 0.2; sequence: 0.0003].
    #[arg(long, value_name = "EPSILON", help_heading = "Loss")]
    pub clip_low: Option<f64>,
    /// The ratio is clipped above 1 plus this [default: 0.2; sequence: 0.0004].
    #[arg(long, value_name = "EPSILON", help_heading = "Loss")]
    pub clip_high: Option<f64>,
    /// Dual clip: upper bound of the ratio of tokens with a negative advantage.
    #[arg(long, value_name = "RATIO", help_heading = "Loss")]
    pub dual_clip: Option<f64>,
    /// Truncated importance sampling: weigh tokens by their probability under the old policy over
    /// that of the inference engine (sampling_logps), at most this.
    #[arg(long, value_name = "WEIGHT", help_heading = "Loss")]
    pub sampling_cap: Option<f64>,
    /// Coefficient of the KL penalty.
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 0.0,
        help_heading = "Loss"
    )]
    pub kl_coefficient: f64,
    /// Estimator of the KL divergence.
    #[arg(long, value_enum, default_value_t = Estimator::K3, help_heading = "Loss")]
    pub kl_estimator: Estimator,
    /// Coefficient of the entropy bonus.
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 0.0,
        help_heading = "Loss"
    )]
    pub entropy_coefficient: f64,
    /// Normalisation of the loss of a step: token-mean, trajectory-mean, sep-avg, sum,
    /// weighted-token-mean or constant:DIVISOR [default: token-mean; sequence: trajectory-mean].
    #[arg(long, help_heading = "Loss")]
    pub aggregation: Option<Aggregation>,
}

/// The unit of a ratio of probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Ratio {
    /// Each token: PPO, GRPO.
    Token,
    /// Each trajectory, as geometric mean over its trained tokens: GSPO.
    Sequence,
}

/// [`KlEstimator`] on the command line. `d` is the log-probability under the reference policy minus
/// that under the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Estimator {
    /// -d
    K1,
    /// d^2 / 2
    K2,
    /// exp(d) - d - 1
    K3,
}

impl Args {
    /// The loss selected by the options.
    ///
    /// # Errors
    /// If an option is out of range, or does not apply to the ratio.
    pub fn loss(&self) -> Result<PolicyLoss> {
        let kl = (self.kl_coefficient != 0.0).then_some(KlPenalty {
            coefficient: self.kl_coefficient,
            estimator: match self.kl_estimator {
                Estimator::K1 => KlEstimator::K1,
                Estimator::K2 => KlEstimator::K2,
                Estimator::K3 => KlEstimator::K3,
            },
        });
        let regularization = Regularization {
            kl,
            entropy_coefficient: self.entropy_coefficient,
        };
        let clip = |default: ClipRange| ClipRange {
            low: self.clip_low.unwrap_or(default.low),
            high: self.clip_high.unwrap_or(default.high),
        };
        match self.ratio {
            Ratio::Token => {
                let options = PpoOptions {
                    clip: clip(ClipRange::default()),
                    dual_clip: self.dual_clip,
                    sampling_cap: self.sampling_cap,
                    regularization,
                };
                options.check()?;
                Ok(PolicyLoss::Token(options))
            }
            Ratio::Sequence => {
                if self.dual_clip.is_some() {
                    anyhow::bail!("--dual-clip applies to --ratio token only");
                }
                let options = GspoOptions {
                    clip: clip(GspoOptions::default().clip),
                    sampling_cap: self.sampling_cap,
                    regularization,
                };
                Gspo::new(&[], options)?;
                Ok(PolicyLoss::Sequence(options))
            }
        }
    }

    /// The entropy is always reported, and differentiated if it is part of the loss.
    pub fn entropy(&self) -> EntropyOutput {
        match self.entropy_coefficient {
            0.0 => EntropyOutput::Value,
            _ => EntropyOutput::Differentiable,
        }
    }

    /// The normalisation of the loss of a step.
    pub fn aggregation(&self) -> Aggregation {
        self.aggregation.unwrap_or(match self.ratio {
            Ratio::Token => Aggregation::TokenMean,
            Ratio::Sequence => Aggregation::TrajectoryMean,
        })
    }

    /// The order of batches and steps.
    pub fn order(&self) -> StepOrder {
        let tasks_per_step = self.run.steps.tasks_per_step();
        StepOrder {
            seed: self.run.steps.seed,
            tasks_per_step,
            tasks_per_batch: self.tasks_per_batch.unwrap_or(tasks_per_step),
            passes_per_batch: self.passes_per_batch,
        }
    }

    /// The program's own settings that affect the results.
    pub fn settings(&self, loss: &PolicyLoss) -> Settings {
        let order = self.order();
        [
            ("loss", json!(format!("{loss:?}"))),
            ("tasks-per-batch", json!(order.tasks_per_batch)),
            ("passes-per-batch", json!(order.passes_per_batch)),
            ("old-log-probs", json!(self.old_log_probs)),
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

    #[test]
    fn defaults_follow_the_ratio() {
        let args = |line: &[&str]| Args::parse_from([&["grpo"][..], line].concat());
        let tokens = args(&[]);
        assert_eq!(tokens.aggregation(), Aggregation::TokenMean);
        assert_eq!(
            tokens.loss().unwrap(),
            PolicyLoss::Token(PpoOptions::default())
        );
        let sequences = args(&["--ratio", "sequence"]);
        assert_eq!(sequences.aggregation(), Aggregation::TrajectoryMean);
        let expected = PolicyLoss::Sequence(GspoOptions::default());
        assert_eq!(sequences.loss().unwrap(), expected);
        assert!(args(&["--clip-low", "2"]).loss().is_err());
    }
}
