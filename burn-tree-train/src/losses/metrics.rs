//! Averages over original predictions, accumulated without waiting for the device.

use burn::tensor::{Bool, Tensor};

use super::regularization::RegularizationTerms;

/// Number of sums, which the largest ratio follows.
const SUMS: usize = 11;

/// Sums over the original predictions of any number of packs, on the device. A merged occurrence
/// counts with its multiplicity, independent of the weights of the loss.
///
/// Only [`PolicyMetrics::read`] waits for the device.
#[derive(Clone, Debug, Default)]
pub struct PolicyMetrics {
    parts: Vec<Part>,
}

/// The sums of one pack.
#[derive(Clone, Debug)]
struct Part {
    /// `[SUMS + 1]`
    values: Tensor<1>,
    has_kl: bool,
    has_entropy: bool,
    has_sampling: bool,
}

/// Averages over original predictions, read from [`PolicyMetrics`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyStatistics {
    /// Number of original predictions. The averages are 0 without any.
    pub predictions: f64,
    /// Mean advantage.
    pub advantage: f64,
    /// Mean ratio of the probabilities under the policy and the old policy; that of the trajectory
    /// in GSPO.
    pub ratio: f64,
    /// Largest ratio.
    pub ratio_max: f64,
    /// Share of predictions with a negative advantage and a ratio below the lower bound, which have
    /// no gradient.
    pub clip_fraction_low: f64,
    /// Share of predictions with a positive advantage and a ratio above the upper bound, which have
    /// no gradient.
    pub clip_fraction_high: f64,
    /// Share of predictions with a negative advantage and a ratio above the bound of the dual clip.
    pub dual_clip_fraction: f64,
    /// Estimate of the KL divergence from the old policy, `ratio - 1 - ln ratio` per token.
    pub old_kl: f64,
    /// Estimate of the KL divergence from the reference policy: that of the penalty, or K3.
    pub ref_kl: Option<f64>,
    /// Mean entropy in nats, if it was computed.
    pub entropy: Option<f64>,
    /// Mean truncated importance weight, if there is an importance correction.
    pub sampling_weight: Option<f64>,
    /// Share of truncated importance weights, if there is an importance correction.
    pub sampling_truncated: Option<f64>,
}

/// Columns of one pack, `[n]` each, without gradient.
pub(super) struct MetricColumns {
    pub(super) multiplicities: Tensor<1>,
    pub(super) advantages: Tensor<1>,
    pub(super) ratio: Tensor<1>,
    pub(super) clipped_low: Tensor<1, Bool>,
    pub(super) clipped_high: Tensor<1, Bool>,
    pub(super) dual_clipped: Option<Tensor<1, Bool>>,
    /// `log_prob - old_log_prob` of each token.
    pub(super) log_ratio: Tensor<1>,
    pub(super) sampling: Option<SamplingWeights>,
}

/// The importance weight of each prediction.
#[derive(Clone)]
pub(super) struct SamplingWeights {
    pub(super) weights: Tensor<1>,
    pub(super) truncated: Tensor<1, Bool>,
}

impl PolicyMetrics {
    /// The metrics of a pack with at least one occurrence.
    pub(super) fn new(columns: MetricColumns, terms: &RegularizationTerms) -> Self {
        let dtype = columns.ratio.dtype();
        let zeros = || columns.ratio.zeros_like();
        let flag = |mask: Tensor<1, Bool>| mask.float().cast(dtype);
        let or_zeros = |column: Option<Tensor<1>>| column.unwrap_or_else(zeros);
        let log_ratio = columns.log_ratio;
        let sampling = columns.sampling.clone();
        let has_sampling = sampling.is_some();
        let (sampling_weights, truncated) = sampling.map_or_else(
            || (zeros(), zeros()),
            |sampling| (sampling.weights, flag(sampling.truncated)),
        );
        let values: [Tensor<1>; SUMS] = [
            columns.ratio.ones_like(),
            columns.advantages,
            columns.ratio.clone(),
            flag(columns.clipped_low),
            flag(columns.clipped_high),
            or_zeros(columns.dual_clipped.map(flag)),
            log_ratio.clone().exp() - log_ratio - 1.0,
            or_zeros(terms.kl.clone()),
            or_zeros(terms.entropy.clone()),
            sampling_weights,
            truncated,
        ];
        // One product and one sum for all columns.
        let matrix: Tensor<2> = Tensor::stack(values.to_vec(), 0);
        let sums = (matrix * columns.multiplicities.unsqueeze_dim::<2>(0)).sum_dim(1);
        let part = Part {
            values: Tensor::cat(vec![sums.reshape([SUMS]), columns.ratio.max()], 0),
            has_kl: terms.kl.is_some(),
            has_entropy: terms.entropy.is_some(),
            has_sampling,
        };
        Self { parts: vec![part] }
    }

    /// Adds the predictions of another pack.
    pub fn merge(&mut self, other: Self) {
        self.parts.extend(other.parts);
    }

    /// Waits for the device and reads the averages, in one transfer.
    pub fn read(&self) -> PolicyStatistics {
        let mut sums = [0.0; SUMS];
        let mut ratio_max = 0.0f64;
        if !self.parts.is_empty() {
            let values = self.parts.iter().map(|part| part.values.clone());
            let values = Tensor::cat(values.collect(), 0).into_data();
            let values: Vec<f64> = values.iter::<f64>().collect();
            for part in values.chunks_exact(SUMS + 1) {
                for (sum, value) in sums.iter_mut().zip(part) {
                    *sum += value;
                }
                // f64::max would hide a NaN.
                let largest = part[SUMS];
                if largest.is_nan() || largest > ratio_max {
                    ratio_max = largest;
                }
            }
        }
        let predictions = sums[0];
        let mean = |index: usize| match predictions {
            0.0 => 0.0,
            _ => sums[index] / predictions,
        };
        // An average over a subset of the packs must not be reported as that of all.
        let all_have = |has: fn(&Part) -> bool| {
            let in_all = !self.parts.is_empty() && self.parts.iter().all(has);
            move |value: f64| in_all.then_some(value)
        };
        PolicyStatistics {
            predictions,
            advantage: mean(1),
            ratio: mean(2),
            ratio_max,
            clip_fraction_low: mean(3),
            clip_fraction_high: mean(4),
            dual_clip_fraction: mean(5),
            old_kl: mean(6),
            ref_kl: all_have(|part| part.has_kl)(mean(7)),
            entropy: all_have(|part| part.has_entropy)(mean(8)),
            sampling_weight: all_have(|part| part.has_sampling)(mean(9)),
            sampling_truncated: all_have(|part| part.has_sampling)(mean(10)),
        }
    }
}
