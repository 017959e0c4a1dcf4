//! The clipped surrogate of PPO and GRPO: one ratio per token.

use burn::tensor::{Bool, Tensor};
use tree_pack::{LossForm, OccurrenceBatch};

use super::columns::{Columns, check_option};
use super::metrics::{MetricColumns, SamplingWeights};
use super::{LossInputError, PolicyMetrics, Regularization};
use burn_tree_nn::TokenLogProbs;

/// The ratio is clipped to `1 - low ..= 1 + high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipRange {
    /// From 0 to 1.
    pub low: f64,
    /// At least 0. Larger than `low` in DAPO
    /// ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)).
    pub high: f64,
}

impl ClipRange {
    /// `1 - epsilon ..= 1 + epsilon`
    pub fn symmetric(epsilon: f64) -> Self {
        Self {
            low: epsilon,
            high: epsilon,
        }
    }

    pub(super) fn check(&self) -> Result<(), LossInputError> {
        let Self { low, high } = *self;
        check_option("clip.low", low, (0.0..=1.0).contains(&low), "0 to 1")?;
        check_option(
            "clip.high",
            high,
            high >= 0.0,
            "a finite number of at least 0",
        )
    }

    /// Where the clip has removed the gradient: below the range with a negative advantage, and
    /// above it with a positive one.
    pub(super) fn clipped(
        &self,
        ratio: &Tensor<1>,
        advantages: &Tensor<1>,
    ) -> (Tensor<1, Bool>, Tensor<1, Bool>) {
        let below = ratio.clone().lower_scalar(1.0 - self.low);
        let above = ratio.clone().greater_scalar(1.0 + self.high);
        (
            below.bool_and(advantages.clone().lower_scalar(0.0)),
            above.bool_and(advantages.clone().greater_scalar(0.0)),
        )
    }
}

impl Default for ClipRange {
    fn default() -> Self {
        Self::symmetric(0.2)
    }
}

/// Options of [`ppo_loss`]. The default is a symmetric clip at 0.2 without regularisation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PpoOptions {
    /// Clip range of the ratio.
    pub clip: ClipRange,
    /// Upper bound `c > 1` of the ratio of predictions with a negative advantage, above which they
    /// have no gradient (dual-clip PPO, [arXiv:1912.09729](https://arxiv.org/abs/1912.09729)).
    pub dual_clip: Option<f64>,
    /// Truncated importance sampling: corrects for differences between the probabilities of the
    /// inference engine and the trainer. The surrogate is multiplied by the constant
    /// `min(exp(old_log_prob - sampling_log_prob), cap)`. Needs sampling log-probabilities.
    pub sampling_cap: Option<f64>,
    /// KL penalty and entropy bonus.
    pub regularization: Regularization,
}

impl PpoOptions {
    /// The loss form that steps must be packed for: merged where all inputs agree.
    pub const LOSS_FORM: LossForm = LossForm::PerToken;

    /// Checks that every option is in range.
    ///
    /// # Errors
    /// [`LossInputError::Option`]
    pub fn check(&self) -> Result<(), LossInputError> {
        self.clip.check()?;
        if let Some(bound) = self.dual_clip {
            check_option("dual_clip", bound, bound > 1.0, "a finite number above 1")?;
        }
        check_sampling_cap(self.sampling_cap)?;
        self.regularization.check()
    }
}

/// The clipped surrogate per token, `[1]`, and its metrics. With `r = exp(log_prob -
/// old_log_prob)`, the advantage `A` and the weight `w` of each occurrence, it is
///
/// ```text
/// sum w (s * -min(r A, clip(r, 1 - low, 1 + high) A)
///        + kl_coefficient * kl - entropy_coefficient * H)
/// ```
///
/// With the dual clip, `-c A` replaces the minimum where `A < 0` and `r > c`. `s` is 1, or the
/// weight of the importance correction. PPO ([arXiv:1707.06347](https://arxiv.org/abs/1707.06347)),
/// GRPO ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300)).
///
/// The weights contain the aggregation with the denominator of the whole optimizer step, so the
/// losses of its packs are summed. Each occurrence has its own advantage, log-probabilities and
/// weight; merged occurrences had equal ones.
///
/// The dtype of the log-probabilities `[n]` of `head`, f32 or f64, is that of the computation. The
/// columns of `occurrences` are constants.
///
/// # Panics
///
/// With the text of [`LossInputError`] where [`try_ppo_loss`] returns one.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_tree_nn::TokenLogProbs;
/// use burn_tree_train::losses::{PpoOptions, ppo_loss};
/// use tree_pack::{
///     Advantage, PackOptions, Trajectory, TreeBatch, build_forests, pack_step,
/// };
///
/// // Two samples of one prompt with opposite advantages.
/// let trajectories = [(3, 1.0), (4, -1.0)].map(|(token, advantage)| Trajectory {
///     advantage: Some(Advantage::Trajectory(advantage)),
///     old_log_probs: Some(vec![0.0, -0.7]),
///     ..Trajectory::new("task", "run", vec![1, 2, token], vec![false, false, true])
/// });
/// let forests = build_forests(&trajectories)?;
/// let options = PackOptions {
///     loss: PpoOptions::LOSS_FORM,
///     ..PackOptions::new(1024)
/// };
/// let step = pack_step(&trajectories, &forests, &options)?;
/// let batch = TreeBatch::new(&step.packs, &Device::flex());
///
/// // Log-probabilities as a model would predict them: the first ratio exceeds the clip range.
/// let log_probs = Tensor::<1>::from_floats([-0.3, -0.9], &Device::flex());
/// let head = TokenLogProbs::new(log_probs, None);
/// let (loss, metrics) = ppo_loss(head, &batch.occurrences, &PpoOptions::default());
/// let expected = (-1.2 + (-0.2f64).exp()) / 2.0;
/// assert!((loss.into_scalar::<f64>() - expected).abs() < 1e-6);
/// assert_eq!(metrics.read().clip_fraction_high, 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn ppo_loss(
    head: TokenLogProbs,
    occurrences: &OccurrenceBatch,
    options: &PpoOptions,
) -> (Tensor<1>, PolicyMetrics) {
    try_ppo_loss(head, occurrences, options).unwrap_or_else(|error| panic!("ppo_loss: {error}"))
}

/// [`ppo_loss`] that returns an error if the arguments do not fit together.
///
/// # Errors
/// [`LossInputError`]: an option out of range, or a column that is missing or has another length.
pub fn try_ppo_loss(
    head: TokenLogProbs,
    occurrences: &OccurrenceBatch,
    options: &PpoOptions,
) -> Result<(Tensor<1>, PolicyMetrics), LossInputError> {
    options.check()?;
    let columns = Columns::new(&head, occurrences, PpoOptions::LOSS_FORM)?;
    let weights = columns.weights()?;
    if occurrences.is_empty() {
        return Ok(((head.log_probs * weights).sum(), PolicyMetrics::default()));
    }
    let advantages = columns.advantages("the clipped surrogate")?;
    let old = columns.old_log_probs("the clipped surrogate")?;
    let sampling = sampling_weights(&columns, &old, options.sampling_cap)?;
    let terms = options.regularization.terms(&head, occurrences, &columns)?;

    let log_ratio = head.log_probs - old;
    let token_log_ratio = log_ratio.clone().inner();
    let ratio = token_log_ratio.clone().exp();
    let (low, high) = options.clip.clipped(&ratio, &advantages);
    let mut bound = ratio
        .full_like(1.0 - options.clip.low)
        .mask_fill(high.clone(), 1.0 + options.clip.high);
    let mut constant = low.clone().bool_or(high.clone());
    let dual_clipped = options.dual_clip.map(|dual| {
        let negative = advantages.clone().lower_scalar(0.0);
        ratio.clone().greater_scalar(dual).bool_and(negative)
    });
    if let (Some(mask), Some(dual)) = (&dual_clipped, options.dual_clip) {
        bound = bound.mask_fill(mask.clone(), dual);
        constant = constant.bool_or(mask.clone());
    }
    // Ratios without effect are replaced before `exp`, so that an overflow does not cause 0 * inf
    // in the loss or its gradient.
    let constant = constant.bool_or(advantages.clone().equal_scalar(0.0));
    let surrogate_ratio = log_ratio
        .mask_fill(constant.clone(), 0.0)
        .exp()
        .mask_where(constant, bound);
    let mut value = surrogate_ratio * advantages.clone().neg();
    if let Some(sampling) = &sampling {
        value = value * sampling.weights.clone();
    }
    if let Some(regularization) = terms.loss.clone() {
        value = value + regularization;
    }
    let metrics = MetricColumns {
        multiplicities: columns.multiplicities()?,
        advantages,
        ratio,
        clipped_low: low,
        clipped_high: high,
        dual_clipped,
        log_ratio: token_log_ratio,
        sampling,
    };
    Ok(((value * weights).sum(), PolicyMetrics::new(metrics, &terms)))
}

pub(super) fn check_sampling_cap(cap: Option<f64>) -> Result<(), LossInputError> {
    match cap {
        Some(cap) => check_option("sampling_cap", cap, cap > 0.0, "a finite number above 0"),
        None => Ok(()),
    }
}

/// `min(exp(old - sampling), cap)` of each prediction.
pub(super) fn sampling_weights(
    columns: &Columns,
    old: &Tensor<1>,
    cap: Option<f64>,
) -> Result<Option<SamplingWeights>, LossInputError> {
    let Some(cap) = cap else {
        return Ok(None);
    };
    let sampling = columns.sampling_log_probs("the importance correction")?;
    let weights = (old.clone() - sampling).exp();
    Ok(Some(SamplingWeights {
        truncated: weights.clone().greater_scalar(cap),
        weights: weights.clamp_max(cap),
    }))
}
