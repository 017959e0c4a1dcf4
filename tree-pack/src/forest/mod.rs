//! Prefix forests of trajectories.

mod build;
mod builder;
mod error;
mod node;
mod prefix_forest;

pub use self::build::{build_forests, flat_forests};
pub use self::error::ForestError;
pub use self::node::{MAX_ROWS, Node, Tree};
pub(crate) use self::prefix_forest::NOBODY;
pub use self::prefix_forest::PrefixForest;
