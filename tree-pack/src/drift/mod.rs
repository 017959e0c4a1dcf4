//! Places where trajectories of a task diverge, and whether their texts differ there.
//!
//! The next turn's prompt contains a sampled completion that was rendered and tokenised again. This
//! may give different tokens for the same text (retokenisation drift), and the prefix is then no
//! longer shared.

mod fork;
#[cfg(feature = "text")]
mod retokenization;

pub use self::fork::{Branch, Fork, forks};
#[cfg(feature = "text")]
pub use self::retokenization::Retokenization;
