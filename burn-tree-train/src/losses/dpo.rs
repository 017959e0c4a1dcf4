//! Direct preference optimization on pairs of trajectories.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use burn::tensor::{Int, Tensor, TensorData, activation};
use tree_pack::{LossForm, OccurrenceBatch, PreferencePair, StepTrajectory};

use super::LossInputError;
use super::columns::{Columns, check_option};
use super::trajectory_sums::{TrajectoryCoefficients, TrajectorySums, count, sum_by};
use burn_tree_nn::{GatherPlan, TokenLogProbs};

/// The loss of a pair with the margin `m = S_chosen - S_rejected`, where `S` is the sum of
/// `log_prob - ref_log_prob` over the trained tokens of a trajectory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PreferenceLoss {
    /// `-(1 - e) ln sigmoid(beta m) - e ln sigmoid(-beta m)`: DPO
    /// ([arXiv:2305.18290](https://arxiv.org/abs/2305.18290)), with label smoothing `e`
    /// ([conservative DPO](https://ericmitchell.ai/cdpo.pdf)).
    Sigmoid {
        /// The assumed share of wrong preferences, `e`: 0 to 0.5.
        label_smoothing: f64,
    },
    /// `(m - 1 / (2 beta))^2`: IPO ([arXiv:2310.12036](https://arxiv.org/abs/2310.12036)).
    Ipo,
}

/// Options of [`Dpo`]. The default is DPO with `beta = 0.1` without label smoothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DpoOptions {
    /// Strength of the penalty on deviations from the reference policy; more than 0.
    pub beta: f64,
    /// The loss of a pair.
    pub loss: PreferenceLoss,
}

impl Default for DpoOptions {
    fn default() -> Self {
        Self {
            beta: 0.1,
            loss: PreferenceLoss::Sigmoid {
                label_smoothing: 0.0,
            },
        }
    }
}

/// Direct preference optimization for one optimizer step: the mean of the [`PreferenceLoss`] over
/// its pairs.
///
/// The trajectories of a pair may share a prefix of any length, or be in different trees, and a
/// trajectory may be in several pairs. The weights of the occurrences are not used. Tokens trained
/// in both trajectories of a pair cancel out.
///
/// If the trajectories of a pair are in different packs, a first pass without gradients calls
/// [`Dpo::collect`] for each pack, and the second pass calls [`Dpo::loss`]; both need
/// log-probabilities of the same parameters. If every pair is in one pack, one pass is enough:
/// `collect` directly before `loss`, pack by pack.
///
/// With several ranks, both trajectories of a pair must be on one rank, as trajectories of one tree
/// always are.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_tree_nn::TokenLogProbs;
/// use burn_tree_train::losses::{Dpo, DpoOptions};
/// use tree_pack::{
///     PackOptions, PreferencePair, Trajectory, TreeBatch, build_forests, pack_step,
/// };
///
/// let trajectories = [3, 4].map(|token| Trajectory {
///     ref_log_probs: Some(vec![-0.5, -0.7]),
///     ..Trajectory::new("task", "run", vec![1, 2, token], vec![false, false, true])
/// });
/// let pairs = [PreferencePair { chosen: 0, rejected: 1 }];
/// let forests = build_forests(&trajectories)?;
/// let options = PackOptions { loss: Dpo::LOSS_FORM, ..PackOptions::new(1024) };
/// let step = pack_step(&trajectories, &forests, &options)?;
/// let mut dpo = Dpo::new(&step.trajectories, &pairs, DpoOptions::default())?;
/// let mut loss = 0.0;
/// for pack in &step.packs {
///     let batch = TreeBatch::new(std::slice::from_ref(pack), &Device::flex());
/// // Log-probabilities as a model would predict them: the margin is 2.
///     let log_probs = Tensor::<1>::from_floats([-0.2, -2.2], &Device::flex());
///     let head = TokenLogProbs::new(log_probs, None);
///     dpo.collect(&head, &batch.occurrences);
///     loss += dpo.loss(head, &batch.occurrences).into_scalar::<f64>();
/// }
/// assert!((loss - (1.0 + (-0.2f64).exp()).ln()).abs() < 1e-6);
/// assert_eq!(dpo.statistics()?.accuracy, 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dpo {
    options: DpoOptions,
    sums: TrajectorySums<1>,
    /// For each pair, the index in the step of the preferred trajectory.
    chosen: Arc<GatherPlan>,
    /// For each pair, the index in the step of the rejected trajectory.
    rejected: Arc<GatherPlan>,
    /// For each trajectory, those it is paired with.
    partners: Vec<Vec<u32>>,
    /// The derivatives for the current sums.
    coefficients: OnceLock<TrajectoryCoefficients>,
}

/// Averages over the pairs of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DpoStatistics {
    /// Number of pairs.
    pub pairs: usize,
    /// Mean loss.
    pub loss: f64,
    /// Share of pairs whose margin is positive.
    pub accuracy: f64,
    /// Mean margin, times beta.
    pub reward_margin: f64,
    /// Mean implicit reward of the preferred trajectories, `beta S`.
    pub chosen_reward: f64,
    /// Mean implicit reward of the rejected trajectories.
    pub rejected_reward: f64,
}

impl Dpo {
    /// The loss form that steps must be packed for: nothing is merged.
    pub const LOSS_FORM: LossForm = LossForm::PerTrajectory;

    /// DPO for a step of these trajectories ([`tree_pack::PackedStep::trajectories`]). Pairs
    /// without a trajectory in the step are ignored.
    ///
    /// # Errors
    /// [`LossInputError`]: an option out of range, no pair, a pair with only one trajectory in the
    /// step, with twice the same trajectory, or without a trained token.
    pub fn new(
        trajectories: &[StepTrajectory],
        pairs: &[PreferencePair],
        options: DpoOptions,
    ) -> Result<Self, LossInputError> {
        check_option(
            "beta",
            options.beta,
            options.beta > 0.0,
            "a finite number above 0",
        )?;
        if let PreferenceLoss::Sigmoid { label_smoothing } = options.loss {
            let holds = (0.0..=0.5).contains(&label_smoothing);
            check_option("label_smoothing", label_smoothing, holds, "0 to 0.5")?;
        }
        let entries = trajectories.iter().zip(0u32..);
        let numbers: HashMap<usize, u32> = entries
            .map(|(entry, number)| (entry.data_index as usize, number))
            .collect();
        let (mut chosen_numbers, mut rejected_numbers) = (Vec::new(), Vec::new());
        let mut partners = vec![Vec::new(); trajectories.len()];
        for &PreferencePair { chosen, rejected } in pairs {
            let problem = |problem| LossInputError::Pair {
                chosen,
                rejected,
                problem,
            };
            let (first, second) = match (numbers.get(&chosen), numbers.get(&rejected)) {
                (Some(&first), Some(&second)) => (first, second),
                (None, None) => continue,
                _ => return Err(LossInputError::PairOutsideStep { chosen, rejected }),
            };
            if first == second {
                return Err(problem("both trajectories are the same"));
            }
            for number in [first, second] {
                if trajectories[number as usize].trained_tokens == 0 {
                    return Err(problem("a trajectory has no trained token"));
                }
            }
            chosen_numbers.push(first);
            rejected_numbers.push(second);
            partners[first as usize].push(second);
            partners[second as usize].push(first);
        }
        if chosen_numbers.is_empty() {
            return Err(LossInputError::NoPairs);
        }
        let plan = |numbers| {
            let plan = GatherPlan::new(numbers, trajectories.len());
            Arc::new(plan.expect("numbers of trajectories of the step"))
        };
        Ok(Self {
            options,
            sums: TrajectorySums::new(trajectories),
            chosen: plan(chosen_numbers),
            rejected: plan(rejected_numbers),
            partners,
            coefficients: OnceLock::new(),
        })
    }

    /// Number of pairs of the step.
    pub fn pairs(&self) -> usize {
        self.chosen.indices().len()
    }

    /// Adds the log-probabilities of a pack to the sums of its trajectories, without gradient. Does
    /// not wait for the device.
    ///
    /// # Panics
    /// With the text of [`LossInputError`] where [`Dpo::try_collect`] returns one.
    pub fn collect(&mut self, output: &TokenLogProbs, occurrences: &OccurrenceBatch) {
        self.try_collect(output, occurrences)
            .unwrap_or_else(|error| panic!("Dpo::collect: {error}"));
    }

    /// [`Dpo::collect`] that returns an error if the arguments do not fit together.
    ///
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
        let reference = columns.ref_log_probs("the margin of a pair")?;
        self.coefficients = OnceLock::new();
        self.sums
            .add([output.log_probs.clone().inner() - reference], occurrences)
    }

    /// The contribution of the pack to the loss, `[1]`.
    ///
    /// # Panics
    /// With the text of [`LossInputError`] where [`Dpo::try_loss`] returns one.
    pub fn loss(&self, head: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
        self.try_loss(head, occurrences)
            .unwrap_or_else(|error| panic!("Dpo::loss: {error}"))
    }

    /// [`Dpo::loss`] that returns an error if the arguments do not fit together.
    ///
    /// # Errors
    /// [`LossInputError`], for example if a trajectory that is paired with one of the pack is
    /// incomplete.
    pub fn try_loss(
        &self,
        head: TokenLogProbs,
        occurrences: &OccurrenceBatch,
    ) -> Result<Tensor<1>, LossInputError> {
        Columns::new(&head, occurrences, Self::LOSS_FORM)?;
        if occurrences.is_empty() {
            return Ok(head.log_probs.sum());
        }
        let mut has_pairs = false;
        for (trajectory, _) in count(&occurrences.host_trajectories) {
            let partners = self.partners.get(trajectory as usize).map(Vec::as_slice);
            // Trajectories in no pair need not be complete.
            for &partner in partners.unwrap_or_default() {
                has_pairs = true;
                self.sums.check_complete(trajectory)?;
                self.sums.check_complete(partner)?;
            }
        }
        if !has_pairs {
            return Ok((head.log_probs * 0.0).sum());
        }
        let coefficients = self.coefficients.get_or_init(|| self.new_coefficients());
        Ok(coefficients.loss(head.log_probs, occurrences).sum())
    }

    /// The statistics of the step. Waits for the device, in one transfer.
    ///
    /// # Errors
    /// [`LossInputError::IncompleteTrajectory`] if packs with pairs have not been collected.
    pub fn statistics(&self) -> Result<DpoStatistics, LossInputError> {
        for plan in [&self.chosen, &self.rejected] {
            for &trajectory in plan.indices() {
                self.sums.check_complete(trajectory)?;
            }
        }
        let (chosen, rejected) = self.pair_sums();
        let margins = chosen.clone() - rejected.clone();
        let (losses, _) = self.pair_losses(margins.clone());
        let ahead = margins.clone().greater_scalar(0.0).float();
        let columns = [losses, ahead.cast(margins.dtype()), chosen, rejected];
        let means = columns.map(|column| column.mean()).to_vec();
        let means = Tensor::cat(means, 0).into_data();
        let means: Vec<f64> = means.iter::<f64>().collect();
        let beta = self.options.beta;
        Ok(DpoStatistics {
            pairs: self.pairs(),
            loss: means[0],
            accuracy: means[1],
            reward_margin: beta * (means[2] - means[3]),
            chosen_reward: beta * means[2],
            rejected_reward: beta * means[3],
        })
    }

    /// `[P]` sums of the preferred and of the rejected trajectory of each pair.
    fn pair_sums(&self) -> (Tensor<1>, Tensor<1>) {
        let sums = self.sums.column(0).expect("predictions are complete");
        let select = |plan: &GatherPlan| {
            let indices: Vec<i32> = plan.indices().iter().map(|&index| index as i32).collect();
            let length = indices.len();
            let indices = TensorData::new(indices, [length]);
            let indices = Tensor::<1, Int>::from_data(indices, &sums.device());
            sums.clone().select(0, indices)
        };
        (select(&self.chosen), select(&self.rejected))
    }

    /// The loss of each pair `[P]` and its derivative with respect to the margin.
    fn pair_losses(&self, margins: Tensor<1>) -> (Tensor<1>, Tensor<1>) {
        let beta = self.options.beta;
        match self.options.loss {
            PreferenceLoss::Sigmoid { label_smoothing } => {
                let scaled = margins * beta;
                let right = activation::log_sigmoid(scaled.clone());
                let wrong = activation::log_sigmoid(scaled.clone().neg());
                let loss = right * (label_smoothing - 1.0) - wrong * label_smoothing;
                // d ln sigmoid(x) / dx = sigmoid(-x)
                let slope = activation::sigmoid(scaled.clone().neg()) * (label_smoothing - 1.0)
                    + activation::sigmoid(scaled) * label_smoothing;
                (loss, slope * beta)
            }
            PreferenceLoss::Ipo => {
                let excess = margins - 0.5 / beta;
                (excess.clone() * excess.clone(), excess * 2.0)
            }
        }
    }

    fn new_coefficients(&self) -> TrajectoryCoefficients {
        let (chosen, rejected) = self.pair_sums();
        let (losses, slopes) = self.pair_losses(chosen - rejected);
        let of_pairs: Tensor<2> = Tensor::stack(vec![slopes, losses], 1) / self.pairs() as f64;
        let of_chosen = sum_by(of_pairs.clone(), self.chosen.clone());
        let of_rejected = sum_by(of_pairs, self.rejected.clone());
        let column = |of_trajectories: Tensor<2>, index| -> Tensor<1> {
            of_trajectories
                .slice_dim(1, index..index + 1)
                .squeeze_dim(1)
        };
        let gradients = column(of_chosen.clone() - of_rejected.clone(), 0);
        // Each trajectory reports half of the loss of the pair.
        let losses = column((of_chosen + of_rejected) * 0.5, 1);
        let inverse_lengths = self.sums.inverse_lengths(&losses);
        TrajectoryCoefficients {
            gradients,
            values: losses * inverse_lengths,
        }
    }
}
