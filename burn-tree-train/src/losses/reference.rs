//! Reference definitions in f64, one trajectory after another, without trees, packs or tensors.

use super::{DpoOptions, GspoOptions, KlEstimator, PpoOptions, PreferenceLoss, Regularization};

/// A trained prediction of a trajectory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Coefficient in the loss of the step.
    pub weight: f64,
    /// Log-probability under the trained policy.
    pub log_prob: f64,
    /// Log-probability under the old policy.
    pub old_log_prob: f64,
    /// Log-probability under the reference policy.
    pub ref_log_prob: f64,
    /// Log-probability that the inference engine reported.
    pub sampling_log_prob: f64,
    /// Advantage.
    pub advantage: f64,
    /// Entropy of the predicted distribution.
    pub entropy: f64,
}

impl Prediction {
    /// Ratio of the probabilities under the trained and the old policy.
    pub fn ratio(&self) -> f64 {
        (self.log_prob - self.old_log_prob).exp()
    }

    /// Estimate of the KL divergence from the reference policy.
    pub fn kl(&self, estimator: KlEstimator) -> f64 {
        let d = self.ref_log_prob - self.log_prob;
        match estimator {
            KlEstimator::K1 => -d,
            KlEstimator::K2 => d * d / 2.0,
            KlEstimator::K3 => d.exp() - d - 1.0,
        }
    }

    /// The importance weight.
    pub fn sampling_weight(&self, cap: Option<f64>) -> f64 {
        match cap {
            None => 1.0,
            Some(cap) => (self.old_log_prob - self.sampling_log_prob).exp().min(cap),
        }
    }

    fn regularization(&self, options: &Regularization) -> f64 {
        let kl = options.kl.map_or(0.0, |penalty| {
            penalty.coefficient * self.kl(penalty.estimator)
        });
        kl - options.entropy_coefficient * self.entropy
    }
}

/// The definition of [`super::ppo_loss`].
pub fn ppo_loss<'a>(
    predictions: impl IntoIterator<Item = &'a Prediction>,
    options: &PpoOptions,
) -> f64 {
    let loss = |prediction: &Prediction| {
        let (ratio, advantage) = (prediction.ratio(), prediction.advantage);
        let clipped = ratio.clamp(1.0 - options.clip.low, 1.0 + options.clip.high);
        let mut gain = (ratio * advantage).min(clipped * advantage);
        if let (Some(bound), true) = (options.dual_clip, advantage < 0.0) {
            gain = gain.max(bound * advantage);
        }
        let surrogate = -gain * prediction.sampling_weight(options.sampling_cap);
        prediction.weight * (surrogate + prediction.regularization(&options.regularization))
    };
    predictions.into_iter().map(loss).sum()
}

/// The definition of [`super::Gspo`], from the trained predictions of each trajectory.
pub fn gspo_loss(trajectories: &[Vec<Prediction>], options: &GspoOptions) -> f64 {
    let mut loss = 0.0;
    for trajectory in trajectories {
        let ratio = trajectory_ratio(trajectory);
        let clipped = ratio.clamp(1.0 - options.clip.low, 1.0 + options.clip.high);
        for prediction in trajectory {
            let advantage = prediction.advantage;
            let gain = (ratio * advantage).min(clipped * advantage);
            let surrogate = -gain * prediction.sampling_weight(options.sampling_cap);
            let regularization = prediction.regularization(&options.regularization);
            loss += prediction.weight * (surrogate + regularization);
        }
    }
    loss
}

/// The ratio of a trajectory: the geometric mean of the ratios of its trained tokens.
pub fn trajectory_ratio(trajectory: &[Prediction]) -> f64 {
    let log_ratios = trajectory.iter().map(|p| p.log_prob - p.old_log_prob);
    (log_ratios.sum::<f64>() / trajectory.len() as f64).exp()
}

/// The definition of [`super::Dpo`], from the trained predictions of each trajectory and the
/// indices of the preferred and the rejected trajectory of each pair.
pub fn dpo_loss(
    trajectories: &[Vec<Prediction>],
    pairs: &[(usize, usize)],
    options: &DpoOptions,
) -> f64 {
    let beta = options.beta;
    let losses = pairs.iter().map(|&(chosen, rejected)| {
        let margin = log_ratio_to_reference(&trajectories[chosen])
            - log_ratio_to_reference(&trajectories[rejected]);
        match options.loss {
            PreferenceLoss::Sigmoid { label_smoothing } => {
                let log_sigmoid = |x: f64| -(1.0 + (-x).exp()).ln();
                -(1.0 - label_smoothing) * log_sigmoid(beta * margin)
                    - label_smoothing * log_sigmoid(-beta * margin)
            }
            PreferenceLoss::Ipo => (margin - 1.0 / (2.0 * beta)).powi(2),
        }
    });
    losses.sum::<f64>() / pairs.len() as f64
}

/// `ln (policy / reference)`, summed over the trained tokens of a trajectory.
pub fn log_ratio_to_reference(trajectory: &[Prediction]) -> f64 {
    trajectory.iter().map(|p| p.log_prob - p.ref_log_prob).sum()
}
