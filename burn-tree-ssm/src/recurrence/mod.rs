//! The tree as recurrent layers see it: which row follows which, cut into windows and paths.
//!
//! A state of a Gated DeltaNet is a matrix per head, and a row's state comes from its parent row.
//! What can be computed in parallel is therefore decided here, once per batch and on the host:
//!
//! * [`tree`] holds who continues whom;
//! * [`windows`] cuts the rows into **windows** of at most `C` rows that all hang off one entry, so
//!   that everything inside a window is a masked matrix product;
//! * [`paths`] chains windows into **paths**, along which the state stays where it is computed,
//!   and sorts paths into **levels**, which run one after another; [`schedule`] is how they are
//!   read, and `runs` cuts them into pieces for kernels;
//! * [`convolution`] finds the tokens that a causal convolution reads, and who reads whom;
//! * [`tree_recurrence`] puts them together, and `upload` takes the lists to devices.

mod check;
mod convolution;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod device;
mod error;
mod limits;
mod paths;
mod readers;
#[cfg(any(feature = "cubecl-backend", feature = "flex"))]
mod runs;
mod schedule;
mod tree;
mod tree_recurrence;
#[cfg(feature = "cubecl-backend")]
mod upload;
mod windows;

pub use convolution::ConvolutionPlan;
pub use error::RecurrenceError;
pub use limits::{ENTRY_ZERO, MAX_ROWS, MAX_WINDOW_ROWS};
pub use readers::Readers;
pub use tree_recurrence::TreeRecurrence;
