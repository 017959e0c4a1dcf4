//! Trajectories that share prefixes, merged into prefix trees and packed for tree training.

#[cfg(feature = "burn")]
mod batch;
mod layout;
mod objective;
mod occurrence;
mod pack;

#[cfg(feature = "burn")]
pub use batch::{OccurrenceBatch, TreeBatch};
pub use layout::{Segment, TreeLayout};
pub use objective::{Aggregation, Objective};
pub use occurrence::Occurrences;
pub use pack::Pack;
