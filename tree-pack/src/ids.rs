//! Ids of steps and batches.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::layout::TreeLayout;

/// Identifies an optimizer step.
///
/// The weights of a pack contain the denominator of its step, so packs of different steps must not
/// be mixed. [`crate::pack_step`] computes the id from the packs: packing the same step with the
/// same options again gives the same id, and different steps have different ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepId(u64);

impl StepId {
    /// The number that files store.
    pub(crate) fn to_number(self) -> u64 {
        self.0
    }

    /// The id for a number in a file.
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// Identifies the batch of a mask, a plan or predictions.
///
/// Batches whose shapes, tokens, parents, positions or subtree ends differ have different ids.
/// Uploading the same packs twice gives the same id.
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
