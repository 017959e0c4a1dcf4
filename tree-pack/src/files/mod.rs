//! Files of packed steps: safetensors with a JSON description in the header.
//!
//! The tensors of pack `i` are `i.tokens`, `i.position_ids`, `i.parents`, `i.subtree_ends`,
//! `i.trajectory_counts`, `i.segments` (`[S, 3]`: start, end, parent or -1), and
//! `i.occurrences.rows`, `.targets`, `.weights`, `.multiplicities`, `.trajectories`,
//! `.token_indices`, `.advantages`, `.old_log_probs`, `.ref_log_probs`, `.sampling_log_probs`; a
//! pack with a gateway also has `i.gateway.runs` (`[R, 6]`: pack, start and end of the rows,
//! position, start and end of the rows that see them) and `i.gateway.root_parents`. The tensors of
//! the step are `trajectories.data_index`, `trajectories.trained_tokens` and
//! `trajectories.segment`. Everything else is JSON under the key `tree_pack` of the safetensors
//! metadata. A step is a single file, so that it is either complete or absent.

mod column;
mod description;
mod error;
mod read;
mod write;

pub use self::error::FileError;
