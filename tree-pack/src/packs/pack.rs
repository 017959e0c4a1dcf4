//! A layout with its predictions: one row of a batch.

use super::gateway::Gateway;
use crate::ids::StepId;
use crate::layout::TreeLayout;
use crate::occurrences::Occurrences;

/// Trees, or a part of a larger tree, laid out in one row within a token budget, and what is
/// trained on them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pack {
    /// The tokens, each once.
    pub layout: TreeLayout,
    /// The predictions made from the rows of `layout`.
    pub occurrences: Occurrences,
    /// `[N]` number of trajectories whose path goes through each row, equal ones included. Sums
    /// over the rows of all packs are sums over the tokens of the separate trajectories; a row
    /// that repeats one of an earlier pack ([`crate::Partitioning::RepeatedPrefixes`]) counts 0.
    /// Not for the loss: weights of `occurrences` are complete.
    pub trajectory_counts: Vec<u32>,
    /// Row length including padding (`>= layout.len()`).
    pub padded_len: usize,
    /// The task of each root of the pack, in row order.
    pub task_ids: Vec<String>,
    /// What the roots continue from, if they are not the first tokens of their paths.
    pub gateway: Option<Gateway>,
    /// The step whose denominator the weights of `occurrences` contain; `None` for packs put
    /// together by hand, of which it is not known. Packs of different steps are not trained
    /// together.
    pub step: Option<StepId>,
}
