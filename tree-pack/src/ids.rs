//! What tells steps and batches apart.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::layout::TreeLayout;

/// Which optimizer step a pack belongs to.
///
/// The weights of a pack contain the denominator of its step, so that packs of different steps do
/// not add up to a loss. [`crate::pack_step`] computes the id from what it packed: the same step
/// packed again with the same options has the same id, and other steps have others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepId(u64);

impl StepId {
    /// The number in a file.
    pub(crate) fn to_number(self) -> u64 {
        self.0
    }

    /// The id that a file has as this number.
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
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
