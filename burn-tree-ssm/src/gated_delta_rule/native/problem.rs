//! The arguments and sizes of a call.

use burn_tree_kit::cpu::{Matrix, Real, Storage};

use crate::recurrence::{ENTRY_ZERO, TreeRecurrence};

/// Sizes of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes {
    pub(crate) key_heads: usize,
    pub(crate) heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
}

impl Shapes {
    /// Value heads of a key head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.key_heads
    }

    /// Numbers of the state of one head.
    pub(super) fn state(&self) -> usize {
        self.key_dim * self.value_dim
    }

    /// A matrix `[.., DK]`.
    pub(super) fn keys<'a, T: Real>(&self, values: &'a [T]) -> Matrix<'a, T> {
        Matrix::new(values, values.len() / self.key_dim, self.key_dim)
    }

    /// A matrix `[.., DV]`: rows of a window, or a state.
    pub(super) fn values<'a, T: Real>(&self, values: &'a [T]) -> Matrix<'a, T> {
        Matrix::new(values, values.len() / self.value_dim, self.value_dim)
    }
}

/// Arguments of a call, as [`crate::TreeSsmOps::gated_delta_rule`] gets them.
pub(crate) struct Problem<'a, E: Storage> {
    pub(crate) shapes: Shapes,
    pub(crate) recurrence: &'a TreeRecurrence,
    pub(crate) scale: f64,
    pub(crate) query: &'a [E],
    pub(crate) key: &'a [E],
    pub(crate) value: &'a [E],
    pub(crate) log_decay: &'a [E::Compute],
    /// Lower log decays count as this.
    pub(crate) lowest_log_decay: f64,
    pub(crate) beta: &'a [E::Compute],
    pub(crate) initial_states: &'a [E::Compute],
}

impl<E: Storage> Problem<'_, E> {
    /// The state of a head with which a path starts, if it is not zero.
    pub(super) fn entry<'s>(
        &'s self,
        entry: i32,
        head: usize,
        states: &'s [E::Compute],
    ) -> Option<&'s [E::Compute]> {
        let (states, index) = match entry {
            ENTRY_ZERO => return None,
            slot if slot >= 0 => (states, slot as usize),
            state => (self.initial_states, (-2 - state) as usize),
        };
        let size = self.shapes.state();
        Some(&states[(index * self.shapes.heads + head) * size..][..size])
    }
}
