//! The gated delta rule for CPU tensors in memory: paths and key heads in parallel, windows of their
//! exact length, matrix products by the `gemm` crate. Equations and names are those of
//! [`super::generic`].

mod backward;
mod forward;
mod window;

use burn_tree_kit::cpu::{Matrix, Real, Storage};

use crate::TreeRecurrence;

pub(crate) use backward::{Results, backward};
pub(crate) use forward::forward;

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
    fn group(&self) -> usize {
        self.heads / self.key_heads
    }

    /// Numbers of the state of one head.
    fn state(&self) -> usize {
        self.key_dim * self.value_dim
    }

    /// A matrix `[.., DK]`.
    fn keys<'a, T: Real>(&self, values: &'a [T]) -> Matrix<'a, T> {
        Matrix::new(values, values.len() / self.key_dim, self.key_dim)
    }

    /// A matrix `[.., DV]`: rows of a window, or a state.
    fn values<'a, T: Real>(&self, values: &'a [T]) -> Matrix<'a, T> {
        Matrix::new(values, values.len() / self.value_dim, self.value_dim)
    }
}

/// A matrix `[rows, rows]`.
fn square<T: Real>(values: &[T], rows: usize) -> Matrix<'_, T> {
    Matrix::new(values, rows, rows)
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
    fn entry<'s>(
        &'s self,
        entry: i32,
        head: usize,
        states: &'s [E::Compute],
    ) -> Option<&'s [E::Compute]> {
        let (states, index) = match entry {
            crate::ENTRY_ZERO => return None,
            slot if slot >= 0 => (states, slot as usize),
            state => (self.initial_states, (-2 - state) as usize),
        };
        let size = self.shapes.state();
        Some(&states[(index * self.shapes.heads + head) * size..][..size])
    }
}

/// `values` with `length` numbers, of which all are zero.
fn zeroed<T: Real>(values: &mut Vec<T>, length: usize) -> &mut [T] {
    values.clear();
    values.resize(length, T::ZERO);
    values
}

/// `values` with `length` numbers, of any value.
fn sized<T: Real>(values: &mut Vec<T>, length: usize) -> &mut [T] {
    values.resize(length, T::ZERO);
    values
}

/// Which of these functions ran on this thread, for tests.
#[cfg(test)]
pub(crate) mod calls {
    use std::cell::RefCell;

    thread_local!(static CALLS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) });

    pub(super) fn record(function: &'static str) {
        CALLS.with_borrow_mut(|calls| calls.push(function));
    }

    /// The calls since the last time this was asked.
    pub(crate) fn take() -> Vec<&'static str> {
        CALLS.take()
    }
}
