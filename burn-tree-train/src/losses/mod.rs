//! Losses for reinforcement learning and preferences, on the occurrences of a pack.
//!
//! A loss is a function of the log-probabilities of a pack ([`TokenLogProbs`]), its
//! [`OccurrenceBatch`] and options. It returns the contribution of the pack to the loss of the
//! optimizer step, `[1]`, which is summed over packs, and metrics that are read after all packs
//! were submitted. Every original prediction keeps its own advantage, old and reference
//! log-probability and weight, which refer to the row that the trajectories share.
//!
//! | loss | defined per | [`LossForm`] of the packs |
//! |---|---|---|
//! | [`sft_loss`] | token | `LogLikelihood`: always merged |
//! | [`sft_loss`] as REINFORCE | token | `AdvantageWeighted`: always merged |
//! | [`ppo_loss`] (PPO, GRPO) | token | `PerToken`: merged where all inputs agree |
//! | [`Gspo`] | trajectory | `PerTrajectory`: never merged |
//! | [`Dpo`] (also IPO) | pair of trajectories | `PerTrajectory`: never merged |
//!
//! For REINFORCE the weights of the occurrences contain the advantages.
//!
//! Trajectory losses need two passes over the packs if a trajectory or a pair extends over several
//! packs: the first pass collects sums over trajectories, and in the second the loss is linear in
//! the log-probabilities.
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
pub use error::LossInputError;
pub use gspo::{Gspo, GspoOptions};
pub use metrics::{PolicyMetrics, PolicyStatistics};
pub use ppo::{ClipRange, PpoOptions, ppo_loss, try_ppo_loss};
pub use regularization::{KlEstimator, KlPenalty, Regularization};
pub use sft::{sft_loss, try_sft_loss};
