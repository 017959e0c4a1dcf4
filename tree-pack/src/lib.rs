//! Merges trajectories that share prefixes into prefix trees and packs them for tree training.
//!
//! Training sequences of one task often share prefixes: samples of one prompt, branches of a
//! search, turns of an agent whose context is rewritten. This crate merges them into prefix trees.
//! Training computes every tree token once, and every original prediction keeps its weight in the
//! loss.
//!
//! ```text
//! JSON lines -> Trajectory -> PrefixForest -> PackedStep { packs: [TreeLayout + Occurrences] }
//!            reader        forest         packing                             -> TreeBatch
//!                                                                          batch (feature `burn`)
//! ```
//!
//! * [`read_trajectories`] streams token ids with loss masks; the module `text` (feature `text`)
//!   creates them from messages.
//! * [`build_forests`] merges the trajectories of each task; [`flat_forests`] keeps them separate,
//!   as a baseline. [`TreeStats`] reports the possible gain.
//! * [`StepPlanner`] assigns tasks to optimizer steps. [`pack_step`] assigns trees to packs, with
//!   an [`Objective`], an [`Aggregation`] and a [`LossForm`]. A tree larger than a pack is refused
//!   or split over several packs ([`Partitioning`]), whose roots continue rows of earlier packs
//!   ([`Gateway`]).
//! * [`assign_to_ranks`] distributes the packs of a step over devices.
//! * A [`PackedStep`] can be saved, checked against the vocabulary of a model
//!   ([`PackedStep::check_vocabulary`]) and uploaded as tensors (feature `burn`). A batch of packs
//!   of different steps is refused; a [`StepId`] distinguishes them.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use tree_pack::{PackOptions, StepPlanner, Trajectory, TreeStats, build_forests, pack_step};
//!
//! let mut data = Vec::new();
//! for (task, prompt) in [("a", [1, 2]), ("b", [3, 4])] {
//!     for answer in [5, 6, 7] {
//!         let tokens = prompt.into_iter().chain([answer]).collect();
//!         data.push(Trajectory::new(task, "sample", tokens, vec![false, false, true]));
//!     }
//! }
//! let forests = build_forests(&data)?;
//! let stats = TreeStats::of_all(&forests, &data);
//! assert_eq!((stats.tokens, stats.unique_tokens), (18, 10));
//!
//! let planner = StepPlanner { seed: Some(0), tasks_per_step: NonZeroUsize::new(2).unwrap() };
//! for tasks in planner.plan(forests.len(), 0) {
//!     let forests: Vec<_> = tasks.into_iter().map(|task| &forests[task]).collect();
//!     let step = pack_step(&data, &forests, &PackOptions::new(5))?;
//!     // Two packs of one tree each, whose losses add up to the mean of six predictions.
//!     assert_eq!(step.packs.len(), 2);
//!     assert_eq!(step.packs[0].occurrences.weights, [1.0 / 6.0; 3]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod advantage;
#[cfg(feature = "burn")]
mod batch;
mod counting_sort;
mod drift;
mod files;
mod forest;
mod ids;
mod index_memory;
mod layout;
mod objective;
mod occurrences;
mod packing;
mod packs;
mod preference;
mod ranks;
mod reader;
mod reward;
mod stats;
mod step_planner;
#[cfg(feature = "text")]
pub mod text;
mod trajectory;
mod vocabulary;
mod writer;

pub use advantage::{AdvantageError, AdvantageEstimator, RewardStats, assign_advantages};
#[cfg(feature = "dataset")]
pub use batch::TreeBatcher;
#[cfg(feature = "burn")]
pub use batch::{BatchError, OccurrenceBatch, TreeBatch};
#[cfg(feature = "text")]
pub use drift::Retokenization;
pub use drift::{Branch, Fork, forks};
pub use files::FileError;
pub use forest::{ForestError, MAX_ROWS, Node, PrefixForest, Tree, build_forests, flat_forests};
pub use ids::{BatchId, StepId};
pub use index_memory::IndexMemory;
pub use layout::{LayoutError, Segment, TreeLayout};
pub use objective::{Aggregation, LossForm, Objective, ObjectiveError, StepTotals};
pub use occurrences::{ColumnError, Occurrences};
pub use packing::{OccurrenceName, PackError, PackOptions, Partitioning, pack_step};
pub use packs::{
    Gateway, GatewayError, Pack, PackedStep, PacksError, PastRun, StepTrajectory, validate_packs,
};
pub use preference::{PairError, PairRule, PreferencePair, preference_pairs};
pub use ranks::{PackCostError, RankAssignment, assign_to_ranks};
pub use reader::{
    DEFAULT_MAX_LINE_BYTES, JsonLines, ReadError, TrajectoryReader, load_trajectories,
    read_trajectories,
};
pub use reward::RewardError;
pub use stats::{ActiveOverLength, TreeStats};
pub use step_planner::StepPlanner;
pub use trajectory::{Advantage, FieldError, MAX_TOKEN_ID, Trajectory};
pub use vocabulary::{TokenPlace, VocabularyError};
pub use writer::write_trajectory;
