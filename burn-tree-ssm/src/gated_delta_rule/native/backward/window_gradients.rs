//! Gradients of one window of one head.

use burn_tree_kit::cpu::{Real, Storage, dot, multiply};

use super::super::buffers::{sized, square, zeroed};
use super::super::problem::{Problem, Shapes};
use super::super::window::{Window, scale_rows};
use super::scratch::Scratch;
use super::tensors::Results;

/// What a window has to do with the states around it.
#[derive(Clone, Copy)]
pub(super) struct WindowStates<'a, T> {
    /// `[DK, DV]` the state with which it starts, `H`.
    pub(super) entry: &'a [T],
    /// `[DK, DV]` the gradient of the state after it, `dS`, if that is used.
    pub(super) grad_exit: Option<&'a [T]>,
}

impl<T: Real> Scratch<T> {
    /// Leaves the gradients of a window in the buffers, and adds that of its entry state to
    /// `grad_entry`.
    pub(super) fn compute<E: Storage<Compute = T>>(
        &mut self,
        problem: &Problem<'_, E>,
        results: &Results<'_, E>,
        window: &Window,
        head: usize,
        states: WindowStates<'_, T>,
        grad_entry: &mut [T],
    ) {
        let shapes = &problem.shapes;
        let (place, width) = ((head, shapes.heads), shapes.value_dim);
        let grad_output = &mut self.grad_output;
        window.load(grad_output, results.grad_output, place, width, T::ONE);
        product(&mut self.scores, &self.keys.scores, &self.gates.decay);

        self.updates(shapes, window.len(), states.grad_exit);
        self.inside(shapes, window.len());
        self.similarities(window);
        self.queries(shapes, window.len(), states.entry);
        self.key_rows(shapes, window.len(), states);
        let through = self.entry_state(shapes, states, grad_entry);
        self.log_decays(window, through);
    }

    /// `dU = P^T dO + diag(E_last) K dS`, `dR = dV = Ag^T dU`, `dY = -exp(G) dR`.
    fn updates(&mut self, shapes: &Shapes, rows: usize, grad_exit: Option<&[T]>) {
        let grad_update = sized(&mut self.grad_update, rows * shapes.value_dim);
        let scores = square(&self.scores, rows).transposed();
        multiply(grad_update, scores, shapes.values(&self.grad_output), false);
        if let Some(grad_exit) = grad_exit {
            scale_rows(&mut self.scaled, &self.keys.key, &self.gates.to_exit);
            let keys = shapes.keys(&self.scaled);
            multiply(grad_update, keys, shapes.values(grad_exit), true);
        }
        multiply(
            sized(&mut self.grad_value, rows * shapes.value_dim),
            square(&self.mixing, rows).transposed(),
            shapes.values(&self.grad_update),
            false,
        );
        scale_rows(
            &mut self.grad_recalled,
            &self.grad_value,
            &self.gates.from_entry,
        );
        self.grad_recalled.iter_mut().for_each(|x| *x = -*x);
    }

    /// Adds `dQ = exp(G) dO H^T + dP K`, and leaves in `from_entry` what passes from the entry to
    /// each row.
    fn queries(&mut self, shapes: &Shapes, rows: usize, entry: &[T]) {
        multiply(
            sized(&mut self.rows, rows * shapes.key_dim),
            shapes.values(&self.grad_output),
            shapes.values(entry).transposed(),
            false,
        );
        scale_rows(&mut self.scaled, &self.rows, &self.gates.from_entry);
        add(&mut self.grad_query, &self.scaled);
        multiply(
            &mut self.grad_query,
            square(&self.grad_scores, rows),
            shapes.keys(&self.keys.key),
            true,
        );
        row_dots(&mut self.from_entry, &self.scaled, &self.keys.query, rows);
        row_dots(
            &mut self.through_row,
            &self.grad_recalled,
            &self.entered.recalled,
            rows,
        );
        add(&mut self.from_entry, &self.through_row);
    }

    /// Adds `dK = dP^T Q + dY H^T + (N + N^T) K + diag(E_last) U dS^T`, and leaves in `to_exit`
    /// what passes from each row to the exit.
    fn key_rows(&mut self, shapes: &Shapes, rows: usize, states: WindowStates<'_, T>) {
        let grad_key = &mut self.grad_key;
        let scores = square(&self.grad_scores, rows).transposed();
        multiply(grad_key, scores, shapes.keys(&self.keys.query), true);
        multiply(
            grad_key,
            shapes.values(&self.grad_recalled),
            shapes.values(states.entry).transposed(),
            true,
        );
        multiply(
            grad_key,
            square(&self.similarity, rows),
            shapes.keys(&self.keys.key),
            true,
        );
        self.to_exit.clear();
        if let Some(grad_exit) = states.grad_exit {
            multiply(
                sized(&mut self.rows, rows * shapes.key_dim),
                shapes.values(&self.entered.update),
                shapes.values(grad_exit).transposed(),
                false,
            );
            scale_rows(&mut self.scaled, &self.rows, &self.gates.to_exit);
            add(grad_key, &self.scaled);
            row_dots(&mut self.to_exit, &self.scaled, &self.keys.key, rows);
        }
    }

    /// Adds `dH = K^T dY + (exp(G) Q)^T dO + exp(G_last) dS`. Returns what passes from the entry to
    /// the exit.
    fn entry_state(
        &mut self,
        shapes: &Shapes,
        states: WindowStates<'_, T>,
        grad_entry: &mut [T],
    ) -> T {
        multiply(
            grad_entry,
            shapes.keys(&self.keys.key).transposed(),
            shapes.values(&self.grad_recalled),
            true,
        );
        scale_rows(&mut self.scaled, &self.keys.query, &self.gates.from_entry);
        multiply(
            grad_entry,
            shapes.keys(&self.scaled).transposed(),
            shapes.values(&self.grad_output),
            true,
        );
        let Some(grad_exit) = states.grad_exit else {
            return T::ZERO;
        };
        let decay = self.gates.through();
        for (sum, &grad) in grad_entry.iter_mut().zip(grad_exit) {
            *sum += decay * grad;
        }
        decay * dot(states.entry, grad_exit)
    }

    /// `dAg = dU R^T`, `dP' = dO U^T`, what passes between rows, `dP`, and with `W = E . dAg`
    /// leaves `W` in `grad_mixing`.
    fn inside(&mut self, shapes: &Shapes, rows: usize) {
        for (target, left, right) in [
            (
                &mut self.grad_mixing,
                &self.grad_update,
                &self.entered.residual,
            ),
            (
                &mut self.grad_scores,
                &self.grad_output,
                &self.entered.update,
            ),
        ] {
            let target = sized(target, rows * rows);
            multiply(
                target,
                shapes.values(left),
                shapes.values(right).transposed(),
                false,
            );
        }
        product(&mut self.passed, &self.grad_scores, &self.scores);
        product(&mut self.product, &self.grad_mixing, &self.mixing);
        add(&mut self.passed, &self.product);
        for grads in [&mut self.grad_mixing, &mut self.grad_scores] {
            for (grad, &decay) in grads.iter_mut().zip(&self.gates.decay) {
                *grad = *grad * decay;
            }
        }
    }

    /// Through the inverse: `dL = -m . (T^T (W diag(beta)) T^T)`, `N = diag(beta) dL`, leaves
    /// `N + N^T` in `similarity`, and the gradient of beta.
    fn similarities(&mut self, window: &Window) {
        let rows = window.len();
        let beta = &self.gates.beta;
        self.product.clear();
        let weights = self.grad_mixing.chunks_exact(rows);
        let scaled = weights.flat_map(|row| row.iter().zip(beta).map(|(&w, &beta)| w * beta));
        self.product.extend(scaled);
        let inverse = square(&self.inverse, rows).transposed();
        // `rows` holds the first of the two products.
        multiply(
            sized(&mut self.rows, rows * rows),
            inverse,
            square(&self.product, rows),
            false,
        );
        multiply(
            sized(&mut self.product, rows * rows),
            square(&self.rows, rows),
            inverse,
            false,
        );

        let grad_beta = zeroed(&mut self.grad_beta, rows);
        let similarity = zeroed(&mut self.similarity, rows * rows);
        for i in 0..rows {
            for j in 0..=i {
                let index = i * rows + j;
                grad_beta[j] += self.grad_mixing[index] * self.inverse[index];
                if i != j && window.has_path(j, i) {
                    let grad_lower = -self.product[index];
                    grad_beta[i] += grad_lower * self.keys.similarity[index];
                    similarity[index] = beta[i] * grad_lower;
                    similarity[j * rows + i] = similarity[index];
                }
            }
        }
    }

    /// The gradient of the log decay of a row: all that passes from its ancestors to itself and
    /// its descendants.
    fn log_decays(&mut self, window: &Window, through: T) {
        let rows = window.len();
        let grads = zeroed(&mut self.grad_log_decay, rows);
        let before = sized(&mut self.through_row, rows);
        for i in 0..rows {
            let passed = &self.passed[i * rows..(i + 1) * rows];
            for row in (0..=i).filter(|&row| window.has_path(row, i)) {
                // To row i from the ancestors of the row.
                before[row] = match window.parent(row) {
                    Some(parent) => before[parent] + passed[parent],
                    None => T::ZERO,
                };
                grads[row] += before[row] + self.from_entry[i];
            }
        }
        // Windows with an exit are pieces of a node: all rows before are ancestors.
        let mut sum = through;
        for (grad, &to_exit) in grads.iter_mut().zip(&self.to_exit) {
            *grad += sum;
            sum += to_exit;
        }
    }
}

/// `target = a . b`
fn product<T: Real>(target: &mut Vec<T>, a: &[T], b: &[T]) {
    target.clear();
    target.extend(a.iter().zip(b).map(|(&a, &b)| a * b));
}

/// `target += values`
fn add<T: Real>(target: &mut [T], values: &[T]) {
    for (sum, &value) in target.iter_mut().zip(values) {
        *sum += value;
    }
}

/// The dot product of each of `rows` rows.
fn row_dots<T: Real>(target: &mut Vec<T>, a: &[T], b: &[T], rows: usize) {
    let width = a.len() / rows;
    target.clear();
    let pairs = a.chunks_exact(width).zip(b.chunks_exact(width));
    target.extend(pairs.map(|(a, b)| dot(a, b)));
}
