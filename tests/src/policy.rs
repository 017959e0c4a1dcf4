//! The clipped policy loss with a KL penalty (GRPO), from plain tensor operations.

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::fixture::PolicyObjective;
use crate::step::read;

/// Inputs of the trained predictions, as columns of equal length.
#[derive(Clone, Debug)]
pub struct PolicyInputs {
    /// Advantages.
    pub advantages: Tensor<1>,
    /// Log-probabilities under the sampling policy.
    pub old: Tensor<1>,
    /// Log-probabilities under the reference policy.
    pub reference: Tensor<1>,
    /// Coefficients in the loss.
    pub weights: Tensor<1>,
}

/// The loss and its terms, each `[1]`.
#[derive(Clone, Debug)]
pub struct PolicyLoss {
    /// `sum w * -min(ratio * A, clip(ratio) * A)`
    pub surrogate: Tensor<1>,
    /// `sum w * (exp(d) - d - 1)` with `d = reference - log p`
    pub divergence: Tensor<1>,
    /// `sum w` over the predictions whose ratio is clipped.
    pub clipped: f64,
}

impl PolicyLoss {
    /// Computes the terms.
    pub fn new(log_probs: Tensor<1>, inputs: &PolicyInputs, objective: PolicyObjective) -> Self {
        let PolicyInputs {
            advantages,
            old,
            reference,
            weights,
        } = inputs.clone();
        let (low, high) = (1.0 - objective.clip_eps, 1.0 + objective.clip_eps);
        let ratio = (log_probs.clone() - old).exp();
        let clipped = (read(&ratio)
            .iter()
            .zip(read(&advantages))
            .zip(read(&weights)))
        .filter(|((ratio, advantage), _)| {
            (*advantage > 0.0 && **ratio > high) || (*advantage < 0.0 && **ratio < low)
        })
        .map(|(_, weight)| weight)
        .sum();
        let inside = ratio.clone().clamp(low, high) * advantages.clone();
        let surrogate = -(ratio * advantages).min_pair(inside);
        let d = reference - log_probs;
        let divergence = d.clone().exp() - d - 1.0;
        Self {
            surrogate: (surrogate * weights.clone()).sum(),
            divergence: (divergence * weights).sum(),
            clipped,
        }
    }

    /// `surrogate + kl_coef * divergence`
    pub fn total(&self, objective: PolicyObjective) -> Tensor<1> {
        self.surrogate.clone() + self.divergence.clone() * objective.kl_coef
    }
}

/// A column on the device.
pub fn column(values: Vec<f64>, dtype: DType, device: &Device) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), (device, dtype))
}
