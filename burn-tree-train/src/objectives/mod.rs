//! Losses for reinforcement learning and preferences, on the occurrences of a pack.
//!
//! An objective is a function of the log-probabilities of a pack ([`TokenLogProbs`]), the pack's
//! [`OccurrenceBatch`] and options; it returns the pack's part of the loss of the optimizer step
//! `[1]`, to be added to those of the other packs, and metrics that are read when all is submitted.
//! Every original prediction keeps its own advantage, old and reference log-probability and
//! weight, gathered from the row that the trajectories share.
//!
//! | objective | formula of | [`LossForm`] of the packs |
//! |---|---|---|
//! | [`sft_loss`] | a token | `LogLikelihood`: always merged |
//! | the same on advantages: REINFORCE | a token | `AdvantageWeighted`: always merged, the advantages are in the weights |
//! | [`ppo_loss`] (PPO, GRPO) | a token | `PerToken`: merged where all inputs agree |
//! | [`Gspo`] | a trajectory | `PerTrajectory`: never merged |
//! | [`Dpo`] (also IPO) | a pair of trajectories | `PerTrajectory`: never merged |
//!
//! Losses of whole trajectories need two passes over the packs if a trajectory, or the two of a
//! pair, lie in different packs: the first collects sums, in the second the loss is linear in the
//! log-probabilities.
//!
//! [`TokenLogProbs`]: burn_tree_nn::TokenLogProbs
//! [`OccurrenceBatch`]: tree_pack::OccurrenceBatch
//! [`LossForm`]: tree_pack::LossForm

mod columns;
mod dpo;
mod error;
mod gspo;
mod metrics;
mod ppo;
pub mod reference;
mod regularization;
mod sft;
mod trajectory_sums;

pub use dpo::{Dpo, DpoOptions, DpoStatistics, PreferenceLoss};
pub use error::ObjectiveInputError;
pub use gspo::{Gspo, GspoOptions};
pub use metrics::{PolicyMetrics, PolicyStatistics};
pub use ppo::{ClipRange, PpoOptions, ppo_loss, try_ppo_loss};
pub use regularization::{KlEstimator, KlPenalty, Regularization};
pub use sft::{sft_loss, try_sft_loss};
