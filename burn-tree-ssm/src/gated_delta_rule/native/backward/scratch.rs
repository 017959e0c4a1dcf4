//! Buffers of a worker: what it computes of a window, and where it stores it.

use burn_tree_kit::cpu::{Real, Storage};

use super::super::problem::Problem;
use super::super::window::{Entered, Gates, Keys, Window, mix};
use super::tensors::{Results, Targets};

/// Buffers of a worker, reused from window to window.
#[derive(Default)]
pub(super) struct Scratch<T> {
    pub(super) keys: Keys<T>,
    pub(super) gates: Gates<T>,
    pub(super) inverse: Vec<T>,
    pub(super) mixing: Vec<T>,
    pub(super) entered: Entered<T>,
    pub(super) scaled: Vec<T>,
    pub(super) scores: Vec<T>,
    pub(super) grad_output: Vec<T>,
    pub(super) grad_update: Vec<T>,
    pub(super) grad_value: Vec<T>,
    pub(super) grad_recalled: Vec<T>,
    pub(super) grad_mixing: Vec<T>,
    pub(super) grad_scores: Vec<T>,
    /// What passes between rows, `Z`.
    pub(super) passed: Vec<T>,
    pub(super) product: Vec<T>,
    pub(super) similarity: Vec<T>,
    pub(super) from_entry: Vec<T>,
    pub(super) to_exit: Vec<T>,
    pub(super) through_row: Vec<T>,
    pub(super) rows: Vec<T>,
    /// Sums over the value heads of a key head.
    pub(super) grad_query: Vec<T>,
    pub(super) grad_key: Vec<T>,
    pub(super) grad_log_decay: Vec<T>,
    pub(super) grad_beta: Vec<T>,
}

impl<T: Real> Scratch<T> {
    /// What the forward pass had: gates, inverse, `Ag` and what follows from the entry state.
    pub(super) fn enter<E: Storage<Compute = T>>(
        &mut self,
        problem: &Problem<'_, E>,
        results: &Results<'_, E>,
        window: &Window,
        head: usize,
        entry: &[T],
    ) {
        let (rows, heads) = (window.len(), problem.shapes.heads);
        let columns = problem.recurrence.window_rows();
        self.gates.load(problem, window, head);
        self.inverse.clear();
        for row in window.rows.clone() {
            let values = &results.inverse[(row * heads + head) * columns..][..rows];
            self.inverse.extend(values.iter().map(|x| x.widen()));
        }
        mix(&mut self.mixing, &self.gates, &self.inverse);
        let (keys, gates) = (&self.keys, &self.gates);
        self.entered
            .load(problem, window, head, keys, gates, &self.mixing, entry);
    }

    pub(super) fn store_head<E: Storage<Compute = T>>(
        &self,
        problem: &Problem<'_, E>,
        window: &Window,
        head: usize,
        targets: &Targets<'_, E>,
    ) {
        let (heads, width) = (problem.shapes.heads, problem.shapes.value_dim);
        for (i, row) in window.rows.clone().enumerate() {
            let at = row * heads + head;
            // SAFETY: each row is in one window, and each head of a run in one task.
            unsafe {
                targets.log_decay.slice(at..at + 1)[0] = self.grad_log_decay[i];
                targets.beta.slice(at..at + 1)[0] = self.grad_beta[i];
                let value = targets.value.slice(at * width..(at + 1) * width);
                narrow(value, &self.grad_value[i * width..], T::ONE);
            }
        }
    }

    pub(super) fn store_key_head<E: Storage<Compute = T>>(
        &self,
        problem: &Problem<'_, E>,
        window: &Window,
        key_head: usize,
        targets: &Targets<'_, E>,
    ) {
        let (heads, width) = (problem.shapes.key_heads, problem.shapes.key_dim);
        for (i, row) in window.rows.clone().enumerate() {
            let at = (row * heads + key_head) * width;
            // SAFETY: each row is in one window, and each key head of a run in one task.
            let (query, key) = unsafe {
                let range = at..at + width;
                (targets.query.slice(range.clone()), targets.key.slice(range))
            };
            let scale = T::from_f64(problem.scale);
            narrow(query, &self.grad_query[i * width..], scale);
            narrow(key, &self.grad_key[i * width..], T::ONE);
        }
    }
}

/// As many values as there are targets, times `factor`, as stored.
fn narrow<E: Storage>(target: &mut [E], values: &[E::Compute], factor: E::Compute) {
    for (target, &value) in target.iter_mut().zip(values) {
        *target = E::narrow(value * factor);
    }
}
