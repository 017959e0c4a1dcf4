//! The loss of an optimizer step: how shared predictions count and how their sum is normalised.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a prediction that several trajectories share counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Every trajectory counts with its weight; occurrences of one `(row, target)` are merged into
    /// one whose weight is the sum (the paper's `lambda_t`). Exact only if the loss is linear in
    /// the log-probability, or if all merged occurrences carry the same inputs; an error otherwise.
    PerPath,
    /// Every original prediction counts separately, with its own inputs. Wherever
    /// [`Objective::PerPath`] is exact, occurrences are merged and the result is the same.
    #[default]
    PerOccurrence,
    /// Every tree token that is a target in some trajectory counts once, with the inputs of the
    /// first trajectory that trains it.
    Unique,
}

/// How the weighted sum over the predictions of an optimizer step is normalised.
///
/// Sums run over the `R` trajectories of the step, equal ones included, and their `n_r` trained
/// tokens. With [`Objective::Unique`] they run over the trained tree tokens instead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aggregation {
    /// `sum_r sum_t`
    Sum,
    /// `(1/R) sum_r sum_t`, the paper's sep-avg.
    SepAvg,
    /// `(1/R) sum_r mean_t`; a trajectory without trained tokens adds 0.
    TrajectoryMean,
    /// `sum_r sum_t / number of trained occurrences`
    TokenMean,
    /// `sum_r w_r sum_t / sum_r w_r n_r`, the only one that uses [`crate::Trajectory::weight`].
    WeightedTokenMean,
    /// Mean over the tree tokens trained in some trajectory; only with [`Objective::Unique`], which
    /// has no means over trajectories or occurrences.
    UniqueMean,
    /// `(1/R) sum_r (1/c) sum_t` with a constant `c`, the maximum length of a trajectory. Unlike
    /// `TrajectoryMean` it has no bias towards short trajectories (Dr. GRPO).
    ConstantLength(f64),
    /// Sum divided by a constant.
    Constant(f64),
}

/// Parses the names that programs and files use, in kebab case; constants are written as
/// `constant:1024` and `constant-length:1024`.
impl FromStr for Aggregation {
    type Err = ObjectiveError;

    fn from_str(text: &str) -> Result<Self, ObjectiveError> {
        let unknown = || ObjectiveError::UnknownAggregation { text: text.into() };
        Ok(match text {
            "sum" => Self::Sum,
            "sep-avg" => Self::SepAvg,
            "trajectory-mean" => Self::TrajectoryMean,
            "token-mean" => Self::TokenMean,
            "weighted-token-mean" => Self::WeightedTokenMean,
            "unique-mean" => Self::UniqueMean,
            _ => {
                let (name, number) = text.split_once(':').ok_or_else(unknown)?;
                let divisor: f64 = number.parse().map_err(|_| unknown())?;
                if !(divisor.is_finite() && divisor > 0.0) {
                    return Err(unknown());
                }
                match name {
                    "constant" => Self::Constant(divisor),
                    "constant-length" => Self::ConstantLength(divisor),
                    _ => return Err(unknown()),
                }
            }
        })
    }
}

impl fmt::Display for Aggregation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::SepAvg => "sep-avg",
            Self::TrajectoryMean => "trajectory-mean",
            Self::TokenMean => "token-mean",
            Self::WeightedTokenMean => "weighted-token-mean",
            Self::UniqueMean => "unique-mean",
            Self::ConstantLength(divisor) => return write!(f, "constant-length:{divisor}"),
            Self::Constant(divisor) => return write!(f, "constant:{divisor}"),
        })
    }
}

/// What the loss of a prediction depends on. It determines which occurrences may be merged and
/// which inputs they carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LossForm {
    /// `weight * nll` (supervised fine-tuning). Always merged; carries no inputs.
    #[default]
    LogLikelihood,
    /// `weight * advantage * nll` (REINFORCE). Always merged; the advantages are multiplied into
    /// the weights.
    AdvantageWeighted,
    /// `weight * f(log p, advantage, old log p, reference log p)` with any `f` (clipped ratios, KL
    /// penalties). Merged where the inputs agree.
    PerToken,
    /// Any function of sums over the tokens of whole trajectories (GSPO, DPO). Never merged.
    PerTrajectory,
}

impl LossForm {
    /// Whether occurrences carry advantages, old and reference log-probabilities.
    pub(crate) fn carries_inputs(self) -> bool {
        matches!(self, Self::PerToken | Self::PerTrajectory)
    }
}

/// Sums over a whole optimizer step, from which the denominators are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTotals {
    /// Trajectories, `R`.
    pub trajectories: u64,
    /// Tokens of all trajectories.
    pub tokens: u64,
    /// Distinct prefixes, each counted once per task.
    pub unique_tokens: u64,
    /// Rows of the packs without padding or repetition: `unique_tokens`, or `tokens` if the
    /// forests are flat.
    pub rows: u64,
    /// Trained occurrences, the sum of `n_r`.
    pub trained_tokens: u64,
    /// Tree tokens trained in some trajectory.
    pub unique_trained_tokens: u64,
    /// Sum of `w_r n_r`.
    pub weighted_trained_tokens: f64,
}

/// Errors of objectives and aggregations.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectiveError {
    /// The text does not name an aggregation.
    #[error(
        "aggregation {text:?}: expected sum, sep-avg, trajectory-mean, token-mean, \
         weighted-token-mean, unique-mean, or constant: or constant-length: and a positive number, \
         as in constant:1024"
    )]
    UnknownAggregation {
        /// The text.
        text: String,
    },
    /// The aggregation is not defined for the objective.
    #[error("{aggregation:?} is not defined for the objective {objective:?}: use {instead}")]
    Undefined {
        /// The objective.
        objective: Objective,
        /// The aggregation.
        aggregation: Aggregation,
        /// The aggregations that can be used instead.
        instead: &'static str,
    },
    /// Under [`Objective::Unique`] tokens count once, so that no sums over whole trajectories
    /// exist.
    #[error("a loss of whole trajectories is not defined for the objective Unique")]
    UniqueTrajectories,
    /// The denominator is not a positive number.
    #[error("the denominator of {aggregation:?} is {denominator}, expected a positive number")]
    Denominator {
        /// The aggregation.
        aggregation: Aggregation,
        /// Its denominator.
        denominator: f64,
    },
}

/// Coefficient of each trajectory's occurrences in the loss of the step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coefficients {
    aggregation: Aggregation,
    denominator: f64,
}

impl Coefficients {
    pub(crate) fn new(
        objective: Objective,
        aggregation: Aggregation,
        loss: LossForm,
        totals: &StepTotals,
    ) -> Result<Self, ObjectiveError> {
        let is_unique = objective == Objective::Unique;
        let undefined = |instead| ObjectiveError::Undefined {
            objective,
            aggregation,
            instead,
        };
        if is_unique && loss == LossForm::PerTrajectory {
            return Err(ObjectiveError::UniqueTrajectories);
        }
        let denominator = match aggregation {
            Aggregation::TrajectoryMean
            | Aggregation::TokenMean
            | Aggregation::WeightedTokenMean
                if is_unique =>
            {
                return Err(undefined(
                    "UniqueMean, Sum, SepAvg, Constant or ConstantLength",
                ));
            }
            Aggregation::UniqueMean if !is_unique => return Err(undefined("TokenMean")),
            Aggregation::Sum => 1.0,
            Aggregation::SepAvg | Aggregation::TrajectoryMean => totals.trajectories as f64,
            Aggregation::TokenMean => totals.trained_tokens as f64,
            Aggregation::WeightedTokenMean => totals.weighted_trained_tokens,
            Aggregation::UniqueMean => totals.unique_trained_tokens as f64,
            Aggregation::ConstantLength(length) => totals.trajectories as f64 * length,
            Aggregation::Constant(denominator) => denominator,
        };
        // A step that trains nothing has a loss of 0 for every denominator.
        let trains_nothing = totals.trained_tokens == 0;
        let usable = |number: f64| number.is_finite() && number > 0.0;
        let constant = match aggregation {
            Aggregation::Constant(constant) | Aggregation::ConstantLength(constant) => constant,
            _ => 1.0,
        };
        if !usable(constant) || !(usable(denominator) || trains_nothing) {
            return Err(ObjectiveError::Denominator {
                aggregation,
                denominator,
            });
        }
        Ok(Self {
            aggregation,
            denominator,
        })
    }

    /// The coefficient for a trajectory of `trained_tokens > 0` and weight `weight`.
    pub(crate) fn of(&self, trained_tokens: u32, weight: f64) -> f64 {
        match self.aggregation {
            Aggregation::TrajectoryMean => 1.0 / (self.denominator * f64::from(trained_tokens)),
            Aggregation::WeightedTokenMean => weight / self.denominator,
            _ => 1.0 / self.denominator,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_aggregations_are_read_as_they_are_written() {
        for aggregation in [
            Aggregation::Sum,
            Aggregation::SepAvg,
            Aggregation::TrajectoryMean,
            Aggregation::TokenMean,
            Aggregation::WeightedTokenMean,
            Aggregation::UniqueMean,
            Aggregation::Constant(1024.0),
            Aggregation::Constant(0.5),
            Aggregation::ConstantLength(4096.0),
        ] {
            assert_eq!(aggregation.to_string().parse(), Ok(aggregation));
        }
        for wrong in ["constant:0", "constant:x", "constant:inf", "1024", "mean"] {
            assert!(wrong.parse::<Aggregation>().is_err(), "{wrong}");
        }
    }
}
