//! Backward pass: from the last level to the first, a run and a key head at a time; within a run,
//! the states at its windows are computed again, then the windows in reverse.

use burn_tree_kit::cpu::{DisjointMut, Real, Storage, dot, multiply};
use rayon::prelude::*;

use super::window::{Entered, Gates, Keys, Window, mix, scale_rows};
use super::{Problem, Shapes, sized, square, zeroed};

/// Gradients of the inputs.
pub(crate) struct Gradients<E: Storage> {
    pub(crate) query: Vec<E>,
    pub(crate) key: Vec<E>,
    pub(crate) value: Vec<E>,
    pub(crate) log_decay: Vec<E::Compute>,
    pub(crate) beta: Vec<E::Compute>,
    pub(crate) initial_states: Vec<E::Compute>,
}

/// What the backward pass gets besides the inputs.
pub(crate) struct Results<'a, E: Storage> {
    /// `[max(S, 1), HV, DK, DV]`
    pub(crate) states: &'a [E::Compute],
    /// `[R, HV, C]`
    pub(crate) inverse: &'a [E],
    /// `[R, HV, DV]`
    pub(crate) grad_output: &'a [E],
    /// `[max(X, 1), HV, DK, DV]`
    pub(crate) grad_states: &'a [E::Compute],
}

/// Gradients that tasks write: each row of a head by one of them.
struct Targets<'a, E: Storage> {
    query: DisjointMut<'a, E>,
    key: DisjointMut<'a, E>,
    value: DisjointMut<'a, E>,
    log_decay: DisjointMut<'a, E::Compute>,
    beta: DisjointMut<'a, E::Compute>,
}

/// Buffers of a worker, reused from window to window.
#[derive(Default)]
struct Scratch<T> {
    keys: Keys<T>,
    gates: Gates<T>,
    inverse: Vec<T>,
    mixing: Vec<T>,
    entered: Entered<T>,
    scaled: Vec<T>,
    scores: Vec<T>,
    grad_output: Vec<T>,
    grad_update: Vec<T>,
    grad_value: Vec<T>,
    grad_recalled: Vec<T>,
    grad_mixing: Vec<T>,
    grad_scores: Vec<T>,
    /// What passes between rows, `Z`.
    passed: Vec<T>,
    product: Vec<T>,
    similarity: Vec<T>,
    from_entry: Vec<T>,
    to_exit: Vec<T>,
    through_row: Vec<T>,
    rows: Vec<T>,
    /// Sums over the value heads of a key head.
    grad_query: Vec<T>,
    grad_key: Vec<T>,
    grad_log_decay: Vec<T>,
    grad_beta: Vec<T>,
}

/// See [`crate::TreeSsmOps::gated_delta_rule_backward`].
pub(crate) fn backward<E: Storage>(
    problem: &Problem<'_, E>,
    results: &Results<'_, E>,
) -> Gradients<E> {
    #[cfg(test)]
    super::calls::record("backward");
    let (shapes, recurrence) = (&problem.shapes, problem.recurrence);
    let zeros = |like: &[E]| vec![E::default(); like.len()];
    let zeros_wide = |like: &[E::Compute]| vec![E::Compute::ZERO; like.len()];
    let mut gradients = Gradients {
        query: zeros(problem.query),
        key: zeros(problem.key),
        value: zeros(problem.value),
        log_decay: zeros_wide(problem.log_decay),
        beta: zeros_wide(problem.beta),
        initial_states: zeros_wide(problem.initial_states),
    };
    // Of the states in all slots.
    let size = shapes.heads * shapes.state();
    let mut grad_slots = vec![E::Compute::ZERO; recurrence.n_slots() * size];
    let requested = recurrence.requested_rows().len() * size;
    grad_slots[..requested].copy_from_slice(&results.grad_states[..requested]);

    let targets = Targets {
        query: DisjointMut::new(&mut gradients.query),
        key: DisjointMut::new(&mut gradients.key),
        value: DisjointMut::new(&mut gradients.value),
        log_decay: DisjointMut::new(&mut gradients.log_decay),
        beta: DisjointMut::new(&mut gradients.beta),
    };
    let runs = recurrence.runs();
    for level in runs.levels().iter().rev() {
        let tasks = (0..level.len() * shapes.key_heads).into_par_iter();
        let entries: Vec<Vec<E::Compute>> = tasks
            .map_init(Scratch::default, |scratch, task| {
                let run = level.start + task / shapes.key_heads;
                let key_head = task % shapes.key_heads;
                walk(
                    problem,
                    results,
                    run,
                    key_head,
                    &grad_slots,
                    &targets,
                    scratch,
                )
            })
            .collect();
        // In the order of the runs.
        for (task, grads) in entries.into_iter().enumerate() {
            let state = match runs.entry(level.start + task / shapes.key_heads) {
                crate::ENTRY_ZERO => continue,
                slot if slot >= 0 => &mut grad_slots[slot as usize * size..],
                initial => &mut gradients.initial_states[(-2 - initial) as usize * size..],
            };
            let state = &mut state[(task % shapes.key_heads) * grads.len()..];
            for (sum, grad) in state.iter_mut().zip(grads) {
                *sum += grad;
            }
        }
    }
    gradients
}

/// The windows of a run, for the value heads of a key head. Returns the gradient of the state with
/// which the run starts, `[group, DK, DV]`.
fn walk<E: Storage>(
    problem: &Problem<'_, E>,
    results: &Results<'_, E>,
    run: usize,
    key_head: usize,
    grad_slots: &[E::Compute],
    targets: &Targets<'_, E>,
    scratch: &mut Scratch<E::Compute>,
) -> Vec<E::Compute> {
    let (shapes, recurrence) = (&problem.shapes, problem.recurrence);
    let (runs, size) = (recurrence.runs(), shapes.state());
    let heads = key_head * shapes.group()..(key_head + 1) * shapes.group();
    let windows: Vec<_> = runs
        .windows(run)
        .map(|index| Window::new(recurrence, index))
        .collect();
    let (entry, siblings) = (runs.entry(run), runs.are_siblings(run));
    let entries: Vec<Vec<E::Compute>> = heads
        .clone()
        .map(|head| match problem.entry(entry, head, results.states) {
            Some(state) => state.to_vec(),
            None => vec![E::Compute::ZERO; size],
        })
        .collect();
    // Of each window (of siblings, for all), the states of the heads with which it starts.
    let mut states = vec![entries];
    for window in &windows[..windows.len() - 1] {
        if siblings {
            break;
        }
        let mut next = states[states.len() - 1].clone();
        scratch.keys.load(problem, window, key_head);
        for (head, state) in heads.clone().zip(&mut next) {
            scratch.enter(problem, results, window, head, state);
            let (keys, gates) = (&scratch.keys, &scratch.gates);
            scratch
                .entered
                .leave(state, &mut scratch.scaled, keys, gates);
        }
        states.push(next);
    }

    let group_size = shapes.group() * size;
    let mut grad_entries = vec![E::Compute::ZERO; group_size];
    let mut grad_exits: Option<Vec<E::Compute>> = None;
    for (index, window) in windows.iter().enumerate().rev() {
        if let Some(slot) = window.slot {
            let slots = &grad_slots[(slot * shapes.heads + heads.start) * size..];
            let grads = grad_exits.get_or_insert_with(|| vec![E::Compute::ZERO; group_size]);
            for (sum, &grad) in grads.iter_mut().zip(slots) {
                *sum += grad;
            }
        }
        if !siblings {
            grad_entries.fill(E::Compute::ZERO);
        }
        scratch.keys.load(problem, window, key_head);
        let sums = window.len() * shapes.key_dim;
        zeroed(&mut scratch.grad_query, sums);
        zeroed(&mut scratch.grad_key, sums);
        for (in_group, head) in heads.clone().enumerate() {
            let part = in_group * size..(in_group + 1) * size;
            let grad_exit = grad_exits.as_ref().map(|grads| &grads[part.clone()]);
            let entry = &states[if siblings { 0 } else { index }][in_group];
            scratch.enter(problem, results, window, head, entry);
            scratch.compute(
                problem,
                results,
                window,
                head,
                entry,
                grad_exit,
                &mut grad_entries[part.clone()],
            );
            scratch.store_head(problem, window, head, targets);
        }
        scratch.store_key_head(problem, window, key_head, targets);
        if !siblings && index > 0 {
            grad_exits = Some(grad_entries.clone());
        }
    }
    grad_entries
}

impl<T: Real> Scratch<T> {
    /// What the forward pass had: gates, inverse, `Ag` and what follows from the entry state.
    fn enter<E: Storage<Compute = T>>(
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

    /// Leaves the gradients of a window in the buffers, and adds that of its entry state to
    /// `grad_entry`; `grad_exit` is that of the state after it.
    fn compute<E: Storage<Compute = T>>(
        &mut self,
        problem: &Problem<'_, E>,
        results: &Results<'_, E>,
        window: &Window,
        head: usize,
        entry: &[T],
        grad_exit: Option<&[T]>,
        grad_entry: &mut [T],
    ) {
        let rows = window.len();
        let shapes = &problem.shapes;
        let (key_dim, value_dim) = (shapes.key_dim, shapes.value_dim);
        let place = (head, problem.shapes.heads);
        window.load(
            &mut self.grad_output,
            results.grad_output,
            place,
            value_dim,
            T::ONE,
        );
        product(&mut self.scores, &self.keys.scores, &self.gates.decay);

        // dU = P^T dO + diag(E_last) K dS, dR = dV = Ag^T dU, dY = -exp(G) dR
        let grad_update = sized(&mut self.grad_update, rows * value_dim);
        let scores = square(&self.scores, rows).transposed();
        multiply(grad_update, scores, shapes.values(&self.grad_output), false);
        if let Some(grad_exit) = grad_exit {
            scale_rows(&mut self.scaled, &self.keys.key, &self.gates.to_exit);
            multiply(
                grad_update,
                shapes.keys(&self.scaled),
                shapes.values(grad_exit),
                true,
            );
        }
        multiply(
            sized(&mut self.grad_value, rows * value_dim),
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

        self.inside(shapes, rows);
        self.similarities(window);

        // dQ = exp(G) dO H^T + dP K
        let entry_state = shapes.values(entry);
        multiply(
            sized(&mut self.rows, rows * key_dim),
            shapes.values(&self.grad_output),
            entry_state.transposed(),
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
        // What passes from the entry to each row.
        row_dots(&mut self.from_entry, &self.scaled, &self.keys.query, rows);
        row_dots(
            &mut self.through_row,
            &self.grad_recalled,
            &self.entered.recalled,
            rows,
        );
        add(&mut self.from_entry, &self.through_row);

        // dK = dP^T Q + dY H^T + (N + N^T) K + diag(E_last) U dS^T
        let grad_key = &mut self.grad_key;
        let scores = square(&self.grad_scores, rows).transposed();
        multiply(grad_key, scores, shapes.keys(&self.keys.query), true);
        multiply(
            grad_key,
            shapes.values(&self.grad_recalled),
            entry_state.transposed(),
            true,
        );
        multiply(
            grad_key,
            square(&self.similarity, rows),
            shapes.keys(&self.keys.key),
            true,
        );
        let mut through = T::ZERO;
        self.to_exit.clear();
        if let Some(grad_exit) = grad_exit {
            multiply(
                sized(&mut self.rows, rows * key_dim),
                shapes.values(&self.entered.update),
                shapes.values(grad_exit).transposed(),
                false,
            );
            scale_rows(&mut self.scaled, &self.rows, &self.gates.to_exit);
            add(grad_key, &self.scaled);
            row_dots(&mut self.to_exit, &self.scaled, &self.keys.key, rows);
        }

        // dH = K^T dY + (exp(G) Q)^T dO + exp(G_last) dS
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
        if let Some(grad_exit) = grad_exit {
            let decay = self.gates.through();
            for (sum, &grad) in grad_entry.iter_mut().zip(grad_exit) {
                *sum += decay * grad;
            }
            through = decay * dot(entry, grad_exit);
        }
        self.log_decays(window, through);
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

    fn store_head<E: Storage<Compute = T>>(
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

    fn store_key_head<E: Storage<Compute = T>>(
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

/// As many values as there are targets, times `factor`, as stored.
fn narrow<E: Storage>(target: &mut [E], values: &[E::Compute], factor: E::Compute) {
    for (target, &value) in target.iter_mut().zip(values) {
        *target = E::narrow(value * factor);
    }
}
