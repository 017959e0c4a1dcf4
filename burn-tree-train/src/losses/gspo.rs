//! GSPO: one ratio per trajectory.

use std::sync::OnceLock;

use burn::tensor::Tensor;
use tree_pack::{LossForm, OccurrenceBatch, StepTrajectory};

use super::columns::Columns;
use super::metrics::MetricColumns;
use super::ppo::{check_sampling_cap, sampling_weights};
use super::trajectory_sums::{TrajectoryCoefficients, TrajectorySums, count};
use super::{ClipRange, LossInputError, PolicyMetrics, Regularization};
use burn_tree_nn::TokenLogProbs;

/// Options of [`Gspo`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GspoOptions {
    /// Clip range of the ratio of a trajectory, far smaller than that of tokens. The default is
    /// that of the paper, 3e-4 and 4e-4.
    pub clip: ClipRange,
    /// As [`super::PpoOptions::sampling_cap`], per token.
    pub sampling_cap: Option<f64>,
    /// KL penalty and entropy bonus, per token.
    pub regularization: Regularization,
}

impl Default for GspoOptions {
    fn default() -> Self {
        Self {
            clip: ClipRange {
                low: 3e-4,
                high: 4e-4,
            },
            sampling_cap: None,
            regularization: Regularization::default(),
        }
    }
}

/// Group sequence policy optimization ([arXiv:2507.18071](https://arxiv.org/abs/2507.18071)) for
/// one optimizer step: with the ratio of trajectory `i` over its `n_i` trained tokens
///
/// ```text
/// r_i = exp((1 / n_i) sum_t (log_prob_t - old_log_prob_t))
/// loss = sum_i sum_t w_t (s_t * -min(r_i A_t, clip(r_i, 1 - low, 1 + high) A_t)
///                         + kl_coefficient * kl_t - entropy_coefficient * H_t)
/// ```
///
/// With [`tree_pack::Aggregation::TrajectoryMean`] the weights `w_t` of a trajectory add up to
/// `1 / R`, as in the paper. Advantages may differ between the tokens of a trajectory.
///
/// If a trajectory is in several packs, a first pass without gradients calls [`Gspo::collect`] for
/// each pack, and the second pass calls [`Gspo::loss`]; both need log-probabilities of the same
/// parameters. If every trajectory is in one pack, one pass is enough: `collect` directly before
/// `loss`, pack by pack.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_tree_nn::TokenLogProbs;
/// use burn_tree_train::losses::{Gspo, GspoOptions};
/// use tree_pack::{
///     Advantage, Aggregation, PackOptions, Trajectory, TreeBatch, build_forests, pack_step,
/// };
///
/// let trajectories = [(3, 1.0), (4, -1.0)].map(|(token, advantage)| Trajectory {
///     advantage: Some(Advantage::Trajectory(advantage)),
///     old_log_probs: Some(vec![-0.5, -0.7]),
///     ..Trajectory::new("task", "run", vec![1, 2, token], vec![false, true, true])
/// });
/// let forests = build_forests(&trajectories)?;
/// let options = PackOptions {
///     loss: Gspo::LOSS_FORM,
///     aggregation: Aggregation::TrajectoryMean,
///     ..PackOptions::new(1024)
/// };
/// let step = pack_step(&trajectories, &forests, &options)?;
/// let mut gspo = Gspo::new(&step.trajectories, GspoOptions::default())?;
/// let mut loss = 0.0;
/// for pack in &step.packs {
///     let batch = TreeBatch::new(std::slice::from_ref(pack), &Device::flex());
/// // Log-probabilities as a model would predict them; the shared token is predicted for each.
///     let log_probs = Tensor::<1>::from_floats([-0.5, -0.5, -0.7, -0.7], &Device::flex());
///     let head = TokenLogProbs::new(log_probs, None);
///     gspo.collect(&head, &batch.occurrences);
///     loss += gspo.loss(head, &batch.occurrences).0.into_scalar::<f64>();
/// }
/// // The policy is still the old one, so both ratios are 1.
/// assert_eq!(loss, 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gspo {
    options: GspoOptions,
    sums: TrajectorySums<3>,
    /// The derivatives for the current sums, with the ratio `[R]` of each trajectory.
    coefficients: OnceLock<(TrajectoryCoefficients, Tensor<1>)>,
}

/// Columns of the sums.
const LOG_RATIO: usize = 0;
/// `w s max(A, 0)`
const GAIN: usize = 1;
/// `w s min(A, 0)`
const LOSS: usize = 2;

impl Gspo {
    /// The loss form that steps must be packed for: nothing is merged.
    pub const LOSS_FORM: LossForm = LossForm::PerTrajectory;

    /// GSPO for a step of these trajectories ([`tree_pack::PackedStep::trajectories`]).
    ///
    /// # Errors
    /// [`LossInputError::Option`] if an option is out of range.
    pub fn new(
        trajectories: &[StepTrajectory],
        options: GspoOptions,
    ) -> Result<Self, LossInputError> {
        options.clip.check()?;
        check_sampling_cap(options.sampling_cap)?;
        options.regularization.check()?;
        Ok(Self {
            options,
            sums: TrajectorySums::new(trajectories),
            coefficients: OnceLock::new(),
        })
    }

    /// Adds the log-probabilities of a pack to the sums of its trajectories, without gradient. Does
    /// not wait for the device.
    ///
    /// # Panics
    /// With the text of [`LossInputError`] where [`Gspo::try_collect`] returns one.
    pub fn collect(&mut self, output: &TokenLogProbs, occurrences: &OccurrenceBatch) {
        self.try_collect(output, occurrences)
            .unwrap_or_else(|error| panic!("Gspo::collect: {error}"));
    }

    /// [`Gspo::collect`] that returns an error if the arguments do not fit together.
    ///
    /// # Errors
    /// [`LossInputError`]: a column that is missing or has another length, a pack of another step,
    /// or a pack collected twice.
    pub fn try_collect(
        &mut self,
        output: &TokenLogProbs,
        occurrences: &OccurrenceBatch,
    ) -> Result<(), LossInputError> {
        let columns = Columns::new(output, occurrences, Self::LOSS_FORM)?;
        if occurrences.is_empty() {
            return Ok(());
        }
        let old = columns.old_log_probs("the ratio of a trajectory")?;
        let mut weights = columns.weights()?;
        if let Some(sampling) = sampling_weights(&columns, &old, self.options.sampling_cap)? {
            weights = weights * sampling.weights;
        }
        let advantages = columns.advantages("the clipped surrogate")?;
        let log_ratio = output.log_probs.clone().inner() - old;
        let gain = weights.clone() * advantages.clone().clamp_min(0.0);
        let loss = weights * advantages.clamp_max(0.0);
        self.coefficients = OnceLock::new();
        self.sums.add([log_ratio, gain, loss], occurrences)
    }

    /// The contribution of the pack to the loss `[1]`, and its metrics. Ratios and clip fractions
    /// are those of the trajectories, counted per prediction.
    ///
    /// # Panics
    /// With the text of [`LossInputError`] where [`Gspo::try_loss`] returns one.
    pub fn loss(
        &self,
        head: TokenLogProbs,
        occurrences: &OccurrenceBatch,
    ) -> (Tensor<1>, PolicyMetrics) {
        self.try_loss(head, occurrences)
            .unwrap_or_else(|error| panic!("Gspo::loss: {error}"))
    }

    /// [`Gspo::loss`] that returns an error if the arguments do not fit together.
    ///
    /// # Errors
    /// [`LossInputError`], for example if a trajectory of the pack is incomplete.
    pub fn try_loss(
        &self,
        head: TokenLogProbs,
        occurrences: &OccurrenceBatch,
    ) -> Result<(Tensor<1>, PolicyMetrics), LossInputError> {
        let columns = Columns::new(&head, occurrences, Self::LOSS_FORM)?;
        let weights = columns.weights()?;
        if occurrences.is_empty() {
            return Ok(((head.log_probs * weights).sum(), PolicyMetrics::default()));
        }
        for (trajectory, _) in count(&occurrences.host_trajectories) {
            self.sums.check_complete(trajectory)?;
        }
        let advantages = columns.advantages("the clipped surrogate")?;
        let old = columns.old_log_probs("the ratio of a trajectory")?;
        let sampling = sampling_weights(&columns, &old, self.options.sampling_cap)?;
        let terms = self
            .options
            .regularization
            .terms(&head, occurrences, &columns)?;

        let cached = self.coefficients.get_or_init(|| self.new_coefficients());
        let (coefficients, trajectory_ratio) = cached;
        let trajectories = occurrences.trajectories.clone().inner();
        let ratio = trajectory_ratio.clone().select(0, trajectories);
        let ratio = ratio.cast(head.log_probs.dtype());
        let (clipped_low, clipped_high) = self.options.clip.clipped(&ratio, &advantages);
        let metrics = MetricColumns {
            multiplicities: columns.multiplicities()?,
            advantages,
            ratio,
            clipped_low,
            clipped_high,
            dual_clipped: None,
            log_ratio: head.log_probs.clone().inner() - old,
            sampling,
        };
        let mut loss = coefficients.loss(head.log_probs, occurrences).sum();
        if let Some(regularization) = terms.loss.clone() {
            loss = loss + (regularization * weights).sum();
        }
        Ok((loss, PolicyMetrics::new(metrics, &terms)))
    }

    /// The coefficients and the ratio `[R]` of each trajectory; those of incomplete trajectories
    /// are not used.
    fn new_coefficients(&self) -> (TrajectoryCoefficients, Tensor<1>) {
        let column = |index| self.sums.column(index).expect("predictions are complete");
        let (gain, loss) = (column(GAIN), column(LOSS));
        let inverse_lengths = self.sums.inverse_lengths(&gain);
        let ratio = (column(LOG_RATIO) * inverse_lengths.clone()).exp();
        let ClipRange { low, high } = self.options.clip;
        let rises = ratio.clone().lower_equal_scalar(1.0 + high);
        let falls = ratio.clone().greater_equal_scalar(1.0 - low);
        // An infinite ratio times an advantage of 0 would be NaN.
        let product = |factor: &Tensor<1>, ratio: Tensor<1>| {
            let none = factor.clone().equal_scalar(0.0);
            (factor.clone() * ratio).mask_fill(none, 0.0)
        };
        let value = product(&gain, ratio.clone().clamp_max(1.0 + high))
            + product(&loss, ratio.clone().clamp_min(1.0 - low));
        let slope = product(&gain, ratio.clone()).mask_fill(rises.bool_not(), 0.0)
            + product(&loss, ratio.clone()).mask_fill(falls.bool_not(), 0.0);
        let coefficients = TrajectoryCoefficients {
            gradients: (slope * inverse_lengths.clone()).neg(),
            values: (value * inverse_lengths).neg(),
        };
        (coefficients, ratio)
    }
}
