//! Where trajectories of a task part, and whether their texts part there, too.
//!
//! A sampled completion that is rendered and tokenised again in the next turn's prompt may come
//! back as other tokens of the same text (retokenisation drift): the prefix is then shared no
//! longer, although nothing was changed.

mod fork;
#[cfg(feature = "text")]
mod retokenization;

pub use self::fork::{Branch, Fork, forks};
#[cfg(feature = "text")]
pub use self::retokenization::Retokenization;
