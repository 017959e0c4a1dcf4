//! Readers of JSON lines and of trajectories in token form.

mod error;
mod json_value;
mod line;
mod lines;
mod seeds;
mod token_form;
mod trajectories;

pub use self::error::ReadError;
pub use self::lines::{DEFAULT_MAX_LINE_BYTES, JsonLines};
pub use self::trajectories::{TrajectoryReader, load_trajectories, read_trajectories};
