//! An optimizer step over packs, some of which continue others.
//!
//! A tree larger than the token budget is cut into parts. A part continues rows of earlier parts:
//! their keys and values, and the recurrent states at its roots, are leaves of its own autodiff
//! graph. The gradients of these leaves are summed, in at least f32, at the part that **owns** the
//! row. When all parts that continue a part are done, one backward pass of that part starts from
//! its own loss and from the sums. So every token is computed once, every graph is traversed once,
//! and only the parts from a root to the current one are in memory.
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
mod output_store;
mod pack_tree;
mod past;
mod recompute;
mod rows;
mod state;

pub use error::{NoGradientsCause, StepError};
pub use forward::{step_forward, step_index_memory, step_router_load};
pub use gradients::{StepGradients, step_gradients};
pub use options::{RouterLossOptions, StepOptions};
pub use state::IntoPackLoss;
