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
mod read;
mod write;

use std::io;
use std::path::PathBuf;

use safetensors::SafeTensorError;
use serde::{Deserialize, Serialize};

use crate::objective::{LossForm, StepTotals};
use crate::packs::PacksError;

const METADATA_KEY: &str = "tree_pack";
const VERSION: u32 = 3;
const DATA_INDEX: &str = "trajectories.data_index";
const TRAINED_TOKENS: &str = "trajectories.trained_tokens";
const SEGMENT: &str = "trajectories.segment";

/// Why a file of packs cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Reading or writing failed.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file is not safetensors, or cut off.
    #[error("{}: {source}", file.display())]
    Safetensors {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: SafeTensorError,
    },
    /// The metadata is not that of packs of a known version.
    #[error("{}: metadata: {message}", file.display())]
    Metadata {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A tensor is missing, or not as it must be.
    #[error("{}: tensor {tensor:?}: got {value}, expected {expected}", file.display())]
    Tensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What was found.
        value: String,
        /// What was expected.
        expected: String,
    },
    /// The packs contradict themselves.
    #[error("{}: {source}", file.display())]
    Packs {
        /// The file.
        file: PathBuf,
        /// The contradiction.
        #[source]
        source: PacksError,
    },
}

/// The JSON part of a file.
#[derive(Serialize, Deserialize)]
struct Description {
    version: u32,
    merged: bool,
    totals: StepTotals,
    trajectories: Vec<TrajectoryDescription>,
    packs: Vec<PackDescription>,
}

#[derive(Serialize, Deserialize)]
struct TrajectoryDescription {
    task_id: String,
    rollout_id: String,
}

#[derive(Serialize, Deserialize)]
struct PackDescription {
    padded_len: usize,
    loss_form: LossForm,
    task_ids: Vec<String>,
    /// [`crate::Gateway::parent`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway_parent: Option<u32>,
    /// The number of [`crate::StepId`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
}
