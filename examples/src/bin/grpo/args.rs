//! The command line.

use std::num::NonZeroUsize;

use anyhow::Result;
use burn_tree_nn::EntropyOutput;
use burn_tree_train::objectives::{
    ClipRange, Gspo, GspoOptions, KlEstimator, KlPenalty, PpoOptions, Regularization,
};
use burn_tree_trainer::data::rollouts::AdvantageSource;
use burn_tree_trainer::objective::PolicyLoss;
use burn_tree_trainer::options::RunArgs;
use burn_tree_trainer::plan::StepOrder;
use burn_tree_trainer::run::log_probs::LogProbSource;
use burn_tree_trainer::run::settings::Settings;
use clap::{Parser, ValueEnum};
use serde::Serialize;
use serde_json::json;
use tree_pack::Aggregation;

/// Trains a language model on rollouts with rewards (GRPO, PPO's clipped surrogate, GSPO),
/// computing every token that rollouts of a task share once.
///
/// Without --data a demonstration runs on the bundled recordings: a small model with random
/// weights is trained on trees and, beside it, on separate rollouts.
#[derive(Parser, Debug, Clone)]
#[command(name = "grpo", version)]
pub struct Args {
    /// What all training programs have.
    #[command(flatten)]
    pub run: RunArgs,

    /// Tasks of one batch of rollouts: old log-probabilities are those at its beginning [default:
    /// as many as a step].
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
    /// How advantages follow from the rewards of a task's rollouts: standardized (GRPO), centered
    /// (without division by the standard deviation), leave-one-out; or data, where they are given.
    #[arg(
        long,
        value_name = "ESTIMATOR",
        default_value = "standardized",
        help_heading = "Rollouts"
    )]
    pub advantages: AdvantageSource,
    /// Leave out the tasks whose rollouts all have the same reward.
    #[arg(long, help_heading = "Rollouts")]
    pub drop_uniform: bool,
    /// Where old log-probabilities come from.
    #[arg(long, value_enum, default_value_t = LogProbSource::Auto, help_heading = "Rollouts")]
    pub old_log_probs: LogProbSource,
    /// Where reference log-probabilities come from, if the divergence from the reference is
    /// penalised; the model is the one that training begins with.
    #[arg(long, value_enum, default_value_t = LogProbSource::Auto, help_heading = "Rollouts")]
    pub ref_log_probs: LogProbSource,

    /// Which ratio of new to old probabilities is clipped.
    #[arg(long, value_enum, default_value_t = Ratio::Token, help_heading = "Objective")]
    pub ratio: Ratio,
    /// The ratio is clipped below 1 minus this [default: 0.2, of sequences 0.0003].
    #[arg(long, value_name = "EPSILON", help_heading = "Objective")]
    pub clip_low: Option<f64>,
    /// The ratio is clipped above 1 plus this [default: 0.2, of sequences 0.0004].
    #[arg(long, value_name = "EPSILON", help_heading = "Objective")]
    pub clip_high: Option<f64>,
    /// Ratios of tokens with a negative advantage are clipped above this, too.
    #[arg(long, value_name = "RATIO", help_heading = "Objective")]
    pub dual_clip: Option<f64>,
    /// Weigh tokens by their probability under the old policy over that reported by the inference
    /// engine (sampling_logps), at most this.
    #[arg(long, value_name = "WEIGHT", help_heading = "Objective")]
    pub sampling_cap: Option<f64>,
    /// Factor of the divergence from the reference policy.
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 0.0,
        help_heading = "Objective"
    )]
    pub kl_coefficient: f64,
    /// How the divergence is estimated.
    #[arg(long, value_enum, default_value_t = Estimator::K3, help_heading = "Objective")]
    pub kl_estimator: Estimator,
    /// Factor of the entropy of the predictions, which is to be large.
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 0.0,
        help_heading = "Objective"
    )]
    pub entropy_coefficient: f64,
    /// How the losses of a step are averaged: token-mean, trajectory-mean, sep-avg, sum,
    /// weighted-token-mean or constant:DIVISOR [default: token-mean, of sequences trajectory-mean].
    #[arg(long, help_heading = "Objective")]
    pub aggregation: Option<Aggregation>,
}

/// What a ratio of probabilities is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Ratio {
    /// Each token: PPO, GRPO.
    Token,
    /// The trained tokens of a trajectory, their geometric mean: GSPO.
    Sequence,
}

/// [`KlEstimator`] on the command line, with `d` the log-probability under the reference minus that
/// under the policy.
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
    /// The loss that the options ask for.
    ///
    /// # Errors
    /// If an option is out of range, or of the other ratio.
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
                    anyhow::bail!("--dual-clip clips ratios of tokens, not with --ratio sequence");
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

    /// The entropy is reported, and differentiated where it is part of the loss.
    pub fn entropy(&self) -> EntropyOutput {
        match self.entropy_coefficient {
            0.0 => EntropyOutput::Value,
            _ => EntropyOutput::Differentiable,
        }
    }

    /// How the losses of a step are averaged.
    pub fn aggregation(&self) -> Aggregation {
        self.aggregation.unwrap_or(match self.ratio {
            Ratio::Token => Aggregation::TokenMean,
            Ratio::Sequence => Aggregation::TrajectoryMean,
        })
    }

    /// Batches of tasks, cut into steps.
    pub fn order(&self) -> StepOrder {
        let tasks_per_step = self.run.steps.tasks_per_step();
        StepOrder {
            seed: self.run.steps.seed,
            tasks_per_step,
            tasks_per_batch: self.tasks_per_batch.unwrap_or(tasks_per_step),
            passes_per_batch: self.passes_per_batch,
        }
    }

    /// What else decides how the run goes.
    pub fn settings(&self, loss: &PolicyLoss) -> Settings {
        let order = self.order();
        [
            ("objective", json!(format!("{loss:?}"))),
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
