//! Clipped policy gradients: PPO and GRPO per token, GSPO per trajectory.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use burn_tree_nn::TokenLogProbs;
use burn_tree_train::losses::{
    Gspo, GspoOptions, PolicyMetrics, PolicyStatistics, PpoOptions, ppo_loss,
};
use tree_pack::{LossForm, OccurrenceBatch, PackedStep, Trajectory};

use super::{Metrics, StepLoss, TrainingLoss, TrajectoryPacks};

/// The clipped ratio and its options.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyLoss {
    /// The ratio of each token.
    Token(PpoOptions),
    /// The ratio of each trajectory.
    Sequence(GspoOptions),
}

impl PolicyLoss {
    /// The loss form that steps must be packed for.
    pub fn loss_form(&self) -> LossForm {
        match self {
            Self::Token(_) => PpoOptions::LOSS_FORM,
            Self::Sequence(_) => Gspo::LOSS_FORM,
        }
    }
}

/// A clipped policy-gradient loss on rollouts with advantages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// The loss.
    pub loss: PolicyLoss,
    /// Whether old log-probabilities are computed instead of read from the data.
    pub computes_old_log_probs: bool,
}

impl TrainingLoss for Policy {
    type StepLoss = PolicyStepLoss;
    const SHOWN: &'static [&'static str] =
        &["reward", "ratio_max", "clip_fraction", "ref_kl", "entropy"];

    fn computes_old_log_probs(&self) -> bool {
        self.computes_old_log_probs
    }

    fn step_loss(&self, step: &PackedStep) -> PolicyStepLoss {
        let surrogate = match self.loss {
            PolicyLoss::Token(options) => Surrogate::Token(options),
            PolicyLoss::Sequence(options) => Surrogate::Sequence {
                // The options are checked before the run begins.
                gspo: Gspo::new(&step.trajectories, options)
                    .map(Box::new)
                    .unwrap_or_else(|error| panic!("{error}")),
                first_pass: !TrajectoryPacks::new(step).is_whole(),
            },
        };
        PolicyStepLoss {
            surrogate,
            metrics: PolicyMetrics::default(),
        }
    }

    /// `sum_i weights[i] |advantages[i]|`, the loss if all ratios are 1 and no terms cancel.
    fn scale(&self, step: &PackedStep) -> Option<f64> {
        let of_pack = |occurrences: &tree_pack::Occurrences| -> Option<f64> {
            let advantages = occurrences.advantages.as_ref()?;
            let terms = occurrences.weights.iter().zip(advantages);
            Some(terms.map(|(weight, &a)| weight * f64::from(a).abs()).sum())
        };
        let packs = step.packs.iter();
        let scale: f64 = packs.filter_map(|pack| of_pack(&pack.occurrences)).sum();
        (scale > 0.0).then_some(scale)
    }

    /// The mean reward of the rollouts, if they have rewards.
    fn data_metrics(&self, step: &PackedStep, data: &[Trajectory]) -> Metrics {
        let mut rollouts = BTreeMap::new();
        for entry in &step.trajectories {
            let trajectory = &data[entry.data_index as usize];
            if let Some(reward) = trajectory.reward {
                let rollout = (&trajectory.task_id, &trajectory.rollout_id);
                rollouts.insert(rollout, f64::from(reward));
            }
        }
        let mean = rollouts.values().sum::<f64>() / rollouts.len() as f64;
        let reward = (!rollouts.is_empty()).then(|| ("reward".to_string(), mean));
        reward.into_iter().collect()
    }
}

/// The loss of [`Policy`] on one step.
pub struct PolicyStepLoss {
    surrogate: Surrogate,
    metrics: PolicyMetrics,
}

enum Surrogate {
    Token(PpoOptions),
    Sequence { gspo: Box<Gspo>, first_pass: bool },
}

impl StepLoss for PolicyStepLoss {
    fn needs_first_pass(&self) -> bool {
        matches!(
            self.surrogate,
            Surrogate::Sequence {
                first_pass: true,
                ..
            }
        )
    }

    fn collect(&mut self, log_probs: &TokenLogProbs, occurrences: &OccurrenceBatch) {
        if let Surrogate::Sequence { gspo, .. } = &mut self.surrogate {
            gspo.collect(log_probs, occurrences);
        }
    }

    fn of_pack(&mut self, log_probs: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
        if !self.needs_first_pass() {
            self.collect(&log_probs, occurrences);
        }
        let (loss, metrics) = match &self.surrogate {
            Surrogate::Token(options) => ppo_loss(log_probs, occurrences, options),
            Surrogate::Sequence { gspo, .. } => gspo.loss(log_probs, occurrences),
        };
        self.metrics.merge(metrics);
        loss
    }

    fn metrics(self) -> Metrics {
        let PolicyStatistics {
            predictions: _,
            advantage,
            ratio,
            ratio_max,
            clip_fraction_low,
            clip_fraction_high,
            dual_clip_fraction,
            old_kl,
            ref_kl,
            entropy,
            sampling_weight,
            sampling_truncated,
        } = self.metrics.read();
        let clip_fraction = clip_fraction_low + clip_fraction_high + dual_clip_fraction;
        let values = [
            ("advantage", Some(advantage)),
            ("ratio", Some(ratio)),
            ("ratio_max", Some(ratio_max)),
            ("clip_fraction", Some(clip_fraction)),
            ("clip_fraction_low", Some(clip_fraction_low)),
            ("clip_fraction_high", Some(clip_fraction_high)),
            ("dual_clip_fraction", Some(dual_clip_fraction)),
            ("old_kl", Some(old_kl)),
            ("ref_kl", ref_kl),
            ("entropy", entropy),
            ("sampling_weight", sampling_weight),
            ("sampling_truncated", sampling_truncated),
        ];
        let known = values.into_iter();
        known
            .filter_map(|(name, value)| Some((name.to_string(), value?)))
            .collect()
    }
}
