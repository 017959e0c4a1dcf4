//! The JSON part of a file, and the names of its tensors.

use serde::{Deserialize, Serialize};

use crate::objective::{LossForm, StepTotals};

pub const METADATA_KEY: &str = "tree_pack";
pub const VERSION: u32 = 3;
pub const DATA_INDEX: &str = "trajectories.data_index";
pub const TRAINED_TOKENS: &str = "trajectories.trained_tokens";
pub const SEGMENT: &str = "trajectories.segment";

/// The JSON part of a file.
#[derive(Serialize, Deserialize)]
pub struct Description {
    pub version: u32,
    pub merged: bool,
    pub totals: StepTotals,
    pub trajectories: Vec<TrajectoryDescription>,
    pub packs: Vec<PackDescription>,
}

#[derive(Serialize, Deserialize)]
pub struct TrajectoryDescription {
    pub task_id: String,
    pub rollout_id: String,
}

#[derive(Serialize, Deserialize)]
pub struct PackDescription {
    pub padded_len: usize,
    pub loss_form: LossForm,
    pub task_ids: Vec<String>,
    /// [`crate::Gateway::parent`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_parent: Option<u32>,
    /// The number of [`crate::StepId`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
}
