//! The definitions, written to be read: numbers in f64, one trajectory after another, without
//! trees, packs or tensors.

use super::{KlEstimator, PpoOptions, Regularization};

/// A trained prediction of a trajectory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Coefficient in the loss of the step.
    pub weight: f64,
    /// Log-probability under the policy that is trained.
    pub log_prob: f64,
    /// Log-probability under the policy before the updates.
    pub old_log_prob: f64,
    /// Log-probability under the reference policy.
    pub ref_log_prob: f64,
    /// Log-probability that the inference engine reported.
    pub sampling_log_prob: f64,
    /// Advantage.
    pub advantage: f64,
    /// Entropy of the distribution that the prediction was drawn from.
    pub entropy: f64,
}

impl Prediction {
    /// Probability ratio of the policy to that before the updates.
    pub fn ratio(&self) -> f64 {
        (self.log_prob - self.old_log_prob).exp()
    }

    /// Estimate of the divergence from the reference policy.
    pub fn kl(&self, estimator: KlEstimator) -> f64 {
        let d = self.ref_log_prob - self.log_prob;
        match estimator {
            KlEstimator::K1 => -d,
            KlEstimator::K2 => d * d / 2.0,
            KlEstimator::K3 => d.exp() - d - 1.0,
        }
    }

    /// Weight of the importance correction.
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

/// See [`super::ppo_loss`].
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
