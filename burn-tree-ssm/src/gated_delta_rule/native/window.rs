//! One window of one head without its entry state.

use std::ops::Range;

use burn_tree_kit::cpu::{Matrix, Real, Storage, multiply};

use super::buffers::{sized, square, zeroed};
use super::problem::Problem;
use crate::recurrence::TreeRecurrence;

/// The rows of a window.
pub(super) struct Window {
    pub(super) rows: Range<usize>,
    /// Slot in which the state after the window is kept.
    pub(super) slot: Option<usize>,
    /// Row `i` has the ancestors `j < i < ends[j]`, as rows of the window.
    ends: Vec<usize>,
    /// The parent of each row, if it is in the window.
    parents: Vec<Option<usize>>,
}

impl Window {
    pub(super) fn new(recurrence: &TreeRecurrence, index: usize) -> Self {
        let start = recurrence.window_starts()[index] as usize;
        let rows = start..start + recurrence.window_lengths()[index] as usize;
        let end = |&end: &u32| (end as usize).min(rows.end) - start;
        let parent = |&parent: &i32| usize::try_from(parent).ok()?.checked_sub(start);
        Self {
            slot: usize::try_from(recurrence.window_slots()[index]).ok(),
            ends: recurrence.subtree_ends()[rows.clone()]
                .iter()
                .map(end)
                .collect(),
            parents: recurrence.parents()[rows.clone()]
                .iter()
                .map(parent)
                .collect(),
            rows,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether row `j <= i` is row `i` or an ancestor of it.
    pub(super) fn has_path(&self, j: usize, i: usize) -> bool {
        i < self.ends[j]
    }

    pub(super) fn parent(&self, row: usize) -> Option<usize> {
        self.parents[row]
    }

    /// The window's rows of one head of `[R, heads, width]`, times `factor`.
    pub(super) fn load<E: Storage>(
        &self,
        target: &mut Vec<E::Compute>,
        source: &[E],
        (head, heads): (usize, usize),
        width: usize,
        factor: E::Compute,
    ) {
        target.clear();
        for row in self.rows.clone() {
            let values = &source[(row * heads + head) * width..][..width];
            target.extend(values.iter().map(|x| x.widen() * factor));
        }
    }
}

/// What the value heads of a key head share.
#[derive(Default)]
pub(super) struct Keys<T> {
    /// `[C, DK]`, scaled.
    pub(super) query: Vec<T>,
    /// `[C, DK]`
    pub(super) key: Vec<T>,
    /// `[C, C]`: `Q K^T`
    pub(super) scores: Vec<T>,
    /// `[C, C]`: `K K^T`
    pub(super) similarity: Vec<T>,
}

impl<T: Real> Keys<T> {
    pub(super) fn load<E: Storage<Compute = T>>(
        &mut self,
        problem: &Problem<'_, E>,
        window: &Window,
        key_head: usize,
    ) {
        let (shapes, rows) = (&problem.shapes, window.len());
        let (width, place) = (shapes.key_dim, (key_head, shapes.key_heads));
        let scale = T::from_f64(problem.scale);
        window.load(&mut self.query, problem.query, place, width, scale);
        window.load(&mut self.key, problem.key, place, width, T::ONE);
        let (query, key) = (shapes.keys(&self.query), shapes.keys(&self.key));
        multiply(
            sized(&mut self.scores, rows * rows),
            query,
            key.transposed(),
            false,
        );
        multiply(
            sized(&mut self.similarity, rows * rows),
            key,
            key.transposed(),
            false,
        );
    }
}

/// Decays and strengths of a value head.
#[derive(Default)]
pub(super) struct Gates<T> {
    /// `[C]` log decay from the entry to the row: the `G` of the equations.
    log_decay: Vec<T>,
    /// `[C]`
    pub(super) beta: Vec<T>,
    /// `[C]` decay from the entry to the row, `exp(G)`.
    pub(super) from_entry: Vec<T>,
    /// `[C]` decay from the row to the last one, `E_last`.
    pub(super) to_exit: Vec<T>,
    /// `[C, C]` the `E` of the equations.
    pub(super) decay: Vec<T>,
}

impl<T: Real> Gates<T> {
    pub(super) fn load<E: Storage<Compute = T>>(
        &mut self,
        problem: &Problem<'_, E>,
        window: &Window,
        head: usize,
    ) {
        let (rows, heads) = (window.len(), problem.shapes.heads);
        let lowest = T::from_f64(problem.lowest_log_decay);
        self.log_decay.clear();
        self.beta.clear();
        for (i, row) in window.rows.clone().enumerate() {
            let before = window
                .parent(i)
                .map_or(T::ZERO, |parent| self.log_decay[parent]);
            let log_decay = problem.log_decay[row * heads + head];
            // NaN stays.
            let log_decay = if log_decay < lowest {
                lowest
            } else {
                log_decay
            };
            self.log_decay.push(before + log_decay);
            self.beta.push(problem.beta[row * heads + head]);
        }
        let exp = |values: &mut Vec<T>, values_of: &dyn Fn(usize) -> T| {
            values.clear();
            values.extend((0..rows).map(|row| values_of(row).exp()));
        };
        let log_decay = &self.log_decay;
        exp(&mut self.from_entry, &|row| log_decay[row]);
        exp(&mut self.to_exit, &|row| {
            log_decay[rows - 1] - log_decay[row]
        });
        let decay = zeroed(&mut self.decay, rows * rows);
        for (i, decay) in decay.chunks_exact_mut(rows).enumerate() {
            for (j, decay) in decay[..=i].iter_mut().enumerate() {
                // Selected, not multiplied by zero: between siblings it may overflow.
                let value = (log_decay[i] - log_decay[j]).exp();
                *decay = if window.has_path(j, i) {
                    value
                } else {
                    T::ZERO
                };
            }
        }
    }

    /// Decay from the entry to the exit, `exp(G_last)`.
    pub(super) fn through(&self) -> T {
        self.from_entry[self.from_entry.len() - 1]
    }
}

/// `T0 [C, C]` by substitution: row `i` is `e_i` minus its similarities times the rows before.
pub(super) fn invert<T: Real>(inverse: &mut Vec<T>, window: &Window, similarity: &[T], beta: &[T]) {
    let rows = window.len();
    let inverse = zeroed(inverse, rows * rows);
    for i in 0..rows {
        let (before, row) = inverse.split_at_mut(i * rows);
        row[i] = T::ONE;
        for (j, before) in before.chunks_exact(rows).enumerate() {
            if window.has_path(j, i) {
                let factor = -(beta[i] * similarity[i * rows + j]);
                for (sum, &x) in row[..=j].iter_mut().zip(&before[..=j]) {
                    *sum += factor * x;
                }
            }
        }
    }
}

/// `Ag = E . T0 . beta_j`
pub(super) fn mix<T: Real>(mixing: &mut Vec<T>, gates: &Gates<T>, inverse: &[T]) {
    mixing.clear();
    let rows = gates.decay.chunks_exact(gates.beta.len());
    for (decay, inverse) in rows.zip(inverse.chunks_exact(gates.beta.len())) {
        let row = decay.iter().zip(inverse).zip(&gates.beta);
        mixing.extend(row.map(|((&decay, &inverse), &beta)| decay * inverse * beta));
    }
}

/// What follows from the entry state.
#[derive(Default)]
pub(super) struct Entered<T> {
    /// `[C, DV]` the `Y` of the equations: `K H`.
    pub(super) recalled: Vec<T>,
    /// `[C, DV]` the `R`: `V - exp(G) Y`.
    pub(super) residual: Vec<T>,
    /// `[C, DV]` the `U`: `Ag R`.
    pub(super) update: Vec<T>,
}

impl<T: Real> Entered<T> {
    /// With the value of head `head` of `problem`.
    pub(super) fn load<E: Storage<Compute = T>>(
        &mut self,
        problem: &Problem<'_, E>,
        window: &Window,
        head: usize,
        keys: &Keys<T>,
        gates: &Gates<T>,
        mixing: &[T],
        entry: &[T],
    ) {
        let (shapes, rows) = (&problem.shapes, window.len());
        let width = shapes.value_dim;
        let place = (head, shapes.heads);
        window.load(&mut self.residual, problem.value, place, width, T::ONE);
        multiply(
            sized(&mut self.recalled, rows * width),
            shapes.keys(&keys.key),
            shapes.values(entry),
            false,
        );
        let recalled = self.recalled.chunks_exact(width);
        let residual = self.residual.chunks_exact_mut(width);
        for ((residual, recalled), &decay) in residual.zip(recalled).zip(&gates.from_entry) {
            for (residual, &recalled) in residual.iter_mut().zip(recalled) {
                *residual = *residual - decay * recalled;
            }
        }
        multiply(
            sized(&mut self.update, rows * width),
            square(mixing, rows),
            shapes.values(&self.residual),
            false,
        );
    }

    /// Takes the state from the entry to the exit: `H' = exp(G_last) H + K^T diag(E_last) U`.
    pub(super) fn leave(
        &self,
        state: &mut [T],
        scaled_key: &mut Vec<T>,
        keys: &Keys<T>,
        gates: &Gates<T>,
    ) {
        let rows = gates.beta.len();
        let (key_dim, width) = (keys.key.len() / rows, self.update.len() / rows);
        let through = gates.through();
        state.iter_mut().for_each(|x| *x = *x * through);
        scale_rows(scaled_key, &keys.key, &gates.to_exit);
        multiply(
            state,
            Matrix::new(scaled_key, rows, key_dim).transposed(),
            Matrix::new(&self.update, rows, width),
            true,
        );
    }
}

/// `target = diag(factors) source`
pub(super) fn scale_rows<T: Real>(target: &mut Vec<T>, source: &[T], factors: &[T]) {
    target.clear();
    let rows = source
        .chunks_exact(source.len() / factors.len())
        .zip(factors);
    target.extend(rows.flat_map(|(row, &factor)| row.iter().map(move |&x| x * factor)));
}
