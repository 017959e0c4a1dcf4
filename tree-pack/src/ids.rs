//! What tells steps and batches apart.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::layout::TreeLayout;
use crate::objective::StepTotals;
use crate::occurrence::Occurrences;
use crate::packing::PackedStep;

/// Which optimizer step a pack belongs to.
///
/// The weights of a pack contain the denominator of its step, so that packs of different steps do
/// not add up to a loss. [`crate::pack_step`] computes the id from what it packed: the same step
/// packed again with the same options has the same id, and other steps have others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepId(u64);

impl StepId {
    /// The id of what is in the packs of a step.
    pub(crate) fn of(step: &PackedStep) -> Self {
        let mut hasher = FxHasher::default();
        hash_totals(&step.totals, &mut hasher);
        step.packs.len().hash(&mut hasher);
        for pack in &step.packs {
            pack.layout.tokens.hash(&mut hasher);
            pack.layout.parents.hash(&mut hasher);
            hash_occurrences(&pack.occurrences, &mut hasher);
        }
        for trajectory in &step.trajectories {
            trajectory.data_index.hash(&mut hasher);
            trajectory.trained_tokens.hash(&mut hasher);
        }
        Self(hasher.finish())
    }

    /// The number in a file.
    pub(crate) fn to_number(self) -> u64 {
        self.0
    }

    /// The id that a file has as this number.
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }
}

fn hash_totals(totals: &StepTotals, hasher: &mut FxHasher) {
    let StepTotals {
        trajectories,
        tokens,
        unique_tokens,
        rows,
        trained_tokens,
        unique_trained_tokens,
        weighted_trained_tokens,
    } = *totals;
    [
        trajectories,
        tokens,
        unique_tokens,
        rows,
        trained_tokens,
        unique_trained_tokens,
        weighted_trained_tokens.to_bits(),
    ]
    .hash(hasher);
}

fn hash_occurrences(occurrences: &Occurrences, hasher: &mut FxHasher) {
    (occurrences.loss_form as u8).hash(hasher);
    occurrences.rows.hash(hasher);
    occurrences.targets.hash(hasher);
    // Whole lists at once: Fx mixes the bytes of a list better than one number after another.
    let weights = occurrences.weights.iter().map(|weight| weight.to_bits());
    weights.collect::<Vec<u64>>().hash(hasher);
    occurrences.trajectories.hash(hasher);
    occurrences.token_indices.hash(hasher);
    for column in [
        &occurrences.advantages,
        &occurrences.old_log_probs,
        &occurrences.ref_log_probs,
        &occurrences.sampling_log_probs,
    ] {
        let bits = column.as_ref().map(|values| {
            let bits = values.iter().map(|value| value.to_bits());
            bits.collect::<Vec<u32>>()
        });
        bits.hash(hasher);
    }
}

/// Which batch something was made for: a mask, a plan, predictions.
///
/// Two batches of equal shape whose layouts differ anywhere in tokens, parents, positions or
/// subtree ends have different ids; the same packs uploaded twice have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchId {
    dims: [usize; 2],
    fingerprint: u64,
}

impl BatchId {
    /// The id of a batch with these layouts, each in a row of `row_length` tokens.
    pub fn new(layouts: &[TreeLayout], row_length: usize) -> Self {
        Self::of(layouts.iter(), row_length)
    }

    pub(crate) fn of<'a>(
        layouts: impl ExactSizeIterator<Item = &'a TreeLayout>,
        row_length: usize,
    ) -> Self {
        let dims = [layouts.len(), row_length];
        let mut hasher = FxHasher::default();
        for layout in layouts {
            layout.tokens.hash(&mut hasher);
            layout.parents.hash(&mut hasher);
            layout.position_ids.hash(&mut hasher);
            layout.subtree_ends.hash(&mut hasher);
        }
        Self {
            dims,
            fingerprint: hasher.finish(),
        }
    }

    /// Number of rows `B` of the batch and their length `N` including padding.
    pub fn dims(&self) -> [usize; 2] {
        self.dims
    }
}
