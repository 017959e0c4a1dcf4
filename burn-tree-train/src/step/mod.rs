//! An optimizer step over packs, some of which continue others.
//!
//! A tree that is larger than a pack is cut in parts. A part continues rows of earlier parts, its
//! ancestors: it reads their keys and values, and the recurrent states after the rows at which it was
//! cut off, as leaves of a graph of its own. The gradients of these leaves are added, in at least
//! f32, to a sum at the part that **owns** the row, however many levels up. When all parts that
//! continue a part are done, one backward pass of that part starts from its own loss and the sums.
//! So every token is computed once, every graph is walked once, and only the parts from a root to
//! the current one are in memory.
//!
//! Recurrent states and convolution inputs always come from the parent part, and their gradients
//! return to it. If a part is shorter than the convolution kernel, an input from further up passes
//! through several parts and is rounded to the dtype of the leaves in each.

mod error;
mod forward;
mod gradients;
mod graph;
mod inputs;
mod options;
mod past;
mod plan;
mod recompute;
mod rows;
mod shelf;
mod state;

pub use error::{NoGradientsCause, StepError};
pub use forward::{step_forward, step_index_memory, step_router_load};
pub use gradients::{StepGradients, step_gradients};
pub use options::{RouterLoss, StepOptions};
pub use state::PackLoss;
