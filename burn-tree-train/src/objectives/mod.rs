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
//! | [`crate::sft_loss`] | a token | `LogLikelihood`: always merged |
//! | the same on advantages: REINFORCE | a token | `AdvantageWeighted`: always merged, the advantages are in the weights |
//! | [`ppo_loss`] (PPO, GRPO) | a token | `PerToken`: merged where all inputs agree |
//!
//! [`TokenLogProbs`]: crate::TokenLogProbs
//! [`OccurrenceBatch`]: tree_pack::OccurrenceBatch
//! [`LossForm`]: tree_pack::LossForm

mod columns;
mod error;
mod metrics;
mod ppo;
pub mod reference;
mod regularization;

pub use error::ObjectiveInputError;
pub use metrics::{PolicyMetrics, PolicyStatistics};
pub use ppo::{ClipRange, PpoOptions, ppo_loss, try_ppo_loss};
pub use regularization::{KlEstimator, KlPenalty, Regularization};
