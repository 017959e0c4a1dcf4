//! KL penalty and entropy bonus, per prediction.

use burn::tensor::Tensor;
use tree_pack::OccurrenceBatch;

use super::LossInputError;
use super::columns::{Columns, check_option};
use burn_tree_nn::TokenLogProbs;

/// An estimate of `KL(policy || reference)` from one sample, with `d = ref_log_prob - log_prob`
/// ([Schulman 2020](http://joschu.net/blog/kl-approx.html)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KlEstimator {
    /// `-d`: unbiased, with high variance. As a loss its expected gradient is 0; useful as a
    /// metric.
    K1,
    /// `d^2 / 2`: biased, never negative. Its expected gradient is that of `KL(policy ||
    /// reference)` if the samples are from the policy.
    K2,
    /// `exp(d) - d - 1`: unbiased, never negative; used by GRPO. As a loss its expected gradient is
    /// that of the reverse divergence `KL(reference || policy)` if the samples are from the policy.
    #[default]
    K3,
}

impl KlEstimator {
    /// The estimate for each prediction, `[n]`; differentiable in `log_probs`.
    pub fn of(self, log_probs: Tensor<1>, ref_log_probs: Tensor<1>) -> Tensor<1> {
        match self {
            Self::K1 => log_probs - ref_log_probs,
            Self::K2 => {
                let difference = ref_log_probs - log_probs;
                difference.clone() * difference * 0.5
            }
            Self::K3 => {
                let difference = ref_log_probs - log_probs;
                difference.clone().exp() - difference - 1.0
            }
        }
    }
}

/// A penalty on the KL divergence from the reference policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KlPenalty {
    /// Coefficient of the divergence; at least 0.
    pub coefficient: f64,
    /// The estimator.
    pub estimator: KlEstimator,
}

/// `w (kl_coefficient * kl - entropy_coefficient * entropy)` for each prediction of weight `w`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Regularization {
    /// Penalty on the KL divergence from the reference policy. Needs reference log-probabilities.
    pub kl: Option<KlPenalty>,
    /// Coefficient of the entropy, which is subtracted from the loss. If not 0, needs
    /// [`burn_tree_nn::EntropyOutput::Differentiable`].
    pub entropy_coefficient: f64,
}

/// The terms of each prediction.
pub(super) struct RegularizationTerms {
    /// Sum of both terms with their coefficients; `None` without either.
    pub(super) loss: Option<Tensor<1>>,
    /// The divergence, without gradient; K3 if there are reference log-probabilities but no
    /// penalty.
    pub(super) kl: Option<Tensor<1>>,
    /// The entropy, without gradient.
    pub(super) entropy: Option<Tensor<1>>,
}

impl Regularization {
    pub(super) fn check(&self) -> Result<(), LossInputError> {
        if let Some(KlPenalty { coefficient, .. }) = self.kl {
            check_option(
                "kl.coefficient",
                coefficient,
                coefficient >= 0.0,
                "a finite number of at least 0",
            )?;
        }
        let coefficient = self.entropy_coefficient;
        check_option("entropy_coefficient", coefficient, true, "a finite number")
    }

    pub(super) fn terms(
        &self,
        head: &TokenLogProbs,
        occurrences: &OccurrenceBatch,
        columns: &Columns,
    ) -> Result<RegularizationTerms, LossInputError> {
        let mut loss: Option<Tensor<1>> = None;
        let kl = match self.kl {
            Some(KlPenalty {
                coefficient,
                estimator,
            }) => {
                let reference =
                    columns.ref_log_probs("the divergence from the reference policy")?;
                let kl = estimator.of(head.log_probs.clone(), reference);
                loss = Some(kl.clone() * coefficient);
                Some(kl.inner())
            }
            None if occurrences.ref_log_probs.is_some() => {
                let reference =
                    columns.ref_log_probs("the divergence from the reference policy")?;
                Some(KlEstimator::K3.of(head.log_probs.clone().inner(), reference))
            }
            None => None,
        };
        let entropy = head.entropy.as_ref();
        if self.entropy_coefficient != 0.0 {
            let entropy = entropy.ok_or(LossInputError::MissingEntropy {
                what: "entropy, which entropy_coefficient needs",
                setting: "Differentiable",
            })?;
            if head.log_probs.is_tracked() && !entropy.is_tracked() {
                return Err(LossInputError::MissingEntropy {
                    what: "a gradient of the entropy, which entropy_coefficient needs",
                    setting: "Differentiable",
                });
            }
            columns.constant("entropy", entropy)?;
            let bonus = entropy.clone().cast(head.log_probs.dtype()) * -self.entropy_coefficient;
            loss = Some(match loss {
                Some(kl) => kl + bonus,
                None => bonus,
            });
        }
        Ok(RegularizationTerms {
            loss,
            kl,
            entropy: entropy
                .map(|entropy| columns.constant("entropy", entropy))
                .transpose()?,
        })
    }
}
