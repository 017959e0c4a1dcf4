//! A layout with its predictions: one row of a batch.

use super::gateway::Gateway;
use crate::ids::StepId;
use crate::layout::TreeLayout;
use crate::occurrences::Occurrences;

/// Trees, or a part of a larger tree, in one row within a token budget, with their predictions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pack {
    /// The tokens, each once.
    pub layout: TreeLayout,
    /// The predictions made from the rows of `layout`.
    pub occurrences: Occurrences,
    /// `[N]` number of trajectories through each row, including equal ones. A sum over the rows of
    /// all packs with these weights is a sum over the tokens of the separate trajectories; a row
    /// that repeats a row of an earlier pack ([`crate::Partitioning::RepeatedPrefixes`]) has 0. The
    /// loss does not need these counts: the weights of `occurrences` already contain them.
    pub trajectory_counts: Vec<u32>,
    /// Row length including padding (`>= layout.len()`).
    pub padded_len: usize,
    /// The task of each root of the pack, in row order.
    pub task_ids: Vec<String>,
    /// The rows that the roots continue, if they are not the first tokens of their paths.
    pub gateway: Option<Gateway>,
    /// The step whose denominator the weights of `occurrences` contain; `None` if it is unknown,
    /// for packs that were built by hand. Packs of different steps cannot be trained together.
    pub step: Option<StepId>,
}
