//! Packs the trees of a step: which tree goes into which pack, and with which weights.

mod bins;
mod counted;
mod error;
mod groups;
mod inputs;
mod merging;
mod occurrences;
mod options;
mod pack_step;
mod packs;
mod partition;
mod rules;
mod step_id;

pub use self::error::{OccurrenceName, PackError};
pub use self::options::{PackOptions, Partitioning};
pub use self::pack_step::pack_step;
