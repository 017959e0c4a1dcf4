//! The packs of one optimizer step.

use super::pack::Pack;
use crate::objective::StepTotals;

/// The packs of one optimizer step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackedStep {
    /// The packs; what one continues from ([`Pack::gateway`]) comes before it. The loss of the
    /// step is the sum of theirs.
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
    /// Number of original predictions that the packs train. If it is 0, nothing is trained: the
    /// loss is 0 whatever the model computes, and so is every gradient.
    ///
    /// Those of these packs alone: [`PackedStep::totals`] of a rank's packs
    /// ([`crate::RankAssignment::step_of`]) are those of the whole step, of which a rank may have
    /// nothing that is trained.
    pub fn trained_predictions(&self) -> usize {
        let packs = self.packs.iter();
        let counts = packs.flat_map(|pack| &pack.occurrences.multiplicities);
        counts.map(|&count| count as usize).sum()
    }

    /// Most tokens that are held at once where each pack waits for those that continue it: the
    /// largest sum over a pack and all that it continues, without padding.
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
