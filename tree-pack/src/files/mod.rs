//! Packed steps as files: safetensors, with a description in JSON in the header.
//!
//! The tensors of pack `i` are called `i.tokens`, `i.position_ids`, `i.parents`,
//! `i.subtree_ends`, `i.trajectory_counts`, `i.segments` (`[S, 3]`: start, end, parent or -1), and
//! `i.occurrences.rows`, `.targets`, `.weights`, `.multiplicities`, `.trajectories`,
//! `.token_indices`, `.advantages`, `.old_log_probs`, `.ref_log_probs`, `.sampling_log_probs`;
//! of a pack with a gateway also `i.gateway.runs` (`[R, 6]`: pack, first row, end of the rows,
//! position, first row that sees them, end of those) and `i.gateway.root_parents`; those of the
//! step are `trajectories.data_index`, `trajectories.trained_tokens` and `trajectories.segment`.
//! The rest is JSON under the key `tree_pack` of the safetensors metadata. One file holds all, so
//! that it is whole or absent.

mod column;
mod description;
mod error;
mod read;
mod write;

pub use self::error::FileError;
