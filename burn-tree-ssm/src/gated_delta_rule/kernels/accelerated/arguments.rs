//! What several kernels are given besides their tensors.

use cubecl::prelude::*;

/// Sizes of a call.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Sizes {
    /// With padding.
    pub rows: u32,
    pub key_heads: u32,
    pub value_heads: u32,
}

/// The windows of a recurrence.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Windows {
    /// `[W]` the first row of each window.
    pub starts: Box<[u32]>,
    /// `[W]` the rows of each window.
    pub lengths: Box<[u32]>,
}

/// The runs of a recurrence; see [`Runs`](crate::recurrence::runs::Runs).
#[derive(CubeType, CubeLaunch)]
pub(crate) struct RunLists {
    /// `[Q + 1]` where the windows of each run start.
    pub offsets: Box<[u32]>,
    /// `[Q]` a slot, [`NO_ENTRY`](super::place::NO_ENTRY), or an initial state, from
    /// [`FIRST_INITIAL`](super::place::FIRST_INITIAL) down.
    pub entries: Box<[u32]>,
    /// `[Q]` whether each of the run's windows starts from the entry.
    pub siblings: Box<[u32]>,
}

/// What kernels along runs walk.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PathLists {
    pub windows: Windows,
    pub runs: RunLists,
}

/// What one of several launches along runs does.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Level {
    /// First run.
    pub first_run: u32,
    /// Of the scores.
    pub scale: f32,
}

/// Log decays and betas, and between which rows decays count.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Gates {
    /// `[R, HV]`
    pub log_decay: Box<[f32]>,
    /// `[R, HV]`
    pub beta: Box<[f32]>,
    /// `[R]` one past the last row of each row's subtree.
    pub subtree_ends: Box<[u32]>,
}
