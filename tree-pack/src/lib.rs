//! Trajectories that share prefixes, merged into prefix trees and packed for tree training.

#[cfg(feature = "burn")]
mod batch;
mod counting_sort;
mod drift;
mod files;
mod forest;
mod layout;
mod lines;
mod objective;
mod occurrence;
mod pack;
mod packing;
mod reader;
mod stats;
mod step;
#[cfg(feature = "text")]
pub mod text;
mod trajectory;

#[cfg(feature = "burn")]
pub use batch::{OccurrenceBatch, TreeBatch, TreeBatcher};
#[cfg(feature = "text")]
pub use drift::Retokenization;
pub use drift::{Branch, Fork, forks};
pub use files::FileError;
pub use forest::{ForestError, MAX_ROWS, Node, PrefixForest, Tree, build_forests, flat_forests};
pub use layout::{LayoutError, Segment, TreeLayout};
pub use lines::{DEFAULT_MAX_LINE_BYTES, JsonLines};
pub use objective::{Aggregation, LossForm, Objective, ObjectiveError, StepTotals};
pub use occurrence::Occurrences;
pub use pack::Pack;
pub use packing::{OccurrenceName, PackError, PackOptions, PackedStep, StepTrajectory, pack_step};
pub use reader::{ReadError, TrajectoryReader, load_trajectories, read_trajectories};
pub use stats::{ActiveOverLength, TreeStats};
pub use step::StepPlanner;
pub use trajectory::{Advantage, FieldError, MAX_TOKEN_ID, Trajectory};
