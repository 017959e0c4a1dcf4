//! The packs of one optimizer step.

use super::pack::Pack;
use crate::objective::StepTotals;

/// The packs of one optimizer step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackedStep {
    /// The packs; a pack comes after those that it continues ([`Pack::gateway`]). The loss of the
    /// step is the sum of their losses.
    pub packs: Vec<Pack>,
    /// Sums over the step.
    pub totals: StepTotals,
    /// The trajectories of the step; [`crate::Occurrences::trajectories`] are indices in it.
    pub trajectories: Vec<StepTrajectory>,
    /// Whether occurrences of one `(row, target)` were merged.
    pub merged: bool,
}

/// A trajectory of an optimizer step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTrajectory {
    /// Its task.
    pub task_id: String,
    /// Its rollout.
    pub rollout_id: String,
    /// Its segment of the rollout.
    pub segment: u32,
    /// Index in the data set.
    pub data_index: u32,
    /// Number of its trained tokens.
    pub trained_tokens: u32,
}

impl PackedStep {
    /// Number of original predictions that the packs train. If it is 0, the loss and all gradients
    /// are 0 for every model.
    ///
    /// It counts these packs only. For the packs of a rank ([`crate::RankAssignment::step_of`]),
    /// [`PackedStep::totals`] are those of the whole step, although the rank may train nothing.
    pub fn trained_predictions(&self) -> usize {
        let packs = self.packs.iter();
        let counts = packs.flat_map(|pack| &pack.occurrences.multiplicities);
        counts.map(|&count| count as usize).sum()
    }

    /// Maximum number of tokens in memory at once if each pack is retained for those that continue
    /// it: the largest sum over a pack and all its ancestors, without padding.
    pub fn retained_tokens(&self) -> usize {
        let mut chains: Vec<usize> = Vec::with_capacity(self.packs.len());
        for pack in &self.packs {
            let above = pack.gateway.as_ref();
            let above = above.map_or(0, |gateway| chains[gateway.parent as usize]);
            chains.push(above + pack.layout.len());
        }
        chains.into_iter().max().unwrap_or(0)
    }
}
