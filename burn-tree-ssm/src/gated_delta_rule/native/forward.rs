//! Forward pass: level by level, a path and a key head at a time.

use burn_tree_kit::cpu::{DisjointMut, Real, Storage, multiply};
use rayon::prelude::*;

use super::buffers::{sized, square};
use super::problem::Problem;
use super::window::{Entered, Gates, Keys, Window, invert, mix, scale_rows};

/// Results of the forward pass.
pub(crate) struct Forward<E: Storage> {
    /// `[R, HV, DV]`
    pub(crate) output: Vec<E>,
    /// `[max(S, 1), HV, DK, DV]`
    pub(crate) states: Vec<E::Compute>,
    /// `[R, HV, C]`
    pub(crate) inverse: Vec<E>,
}

/// Buffers of a worker, reused from window to window.
#[derive(Default)]
struct Scratch<T> {
    keys: Keys<T>,
    gates: Gates<T>,
    inverse: Vec<T>,
    mixing: Vec<T>,
    scores: Vec<T>,
    scaled: Vec<T>,
    entered: Entered<T>,
    output: Vec<T>,
}

/// A state that a path leaves in a slot.
struct KeptState<T> {
    slot: usize,
    head: usize,
    state: Vec<T>,
}

/// See [`crate::TreeSsmOps::gated_delta_rule`].
pub(crate) fn forward<E: Storage>(problem: &Problem<'_, E>) -> Forward<E> {
    #[cfg(test)]
    super::calls::record("forward");
    let (shapes, recurrence) = (&problem.shapes, problem.recurrence);
    let rows = recurrence.rows() * shapes.heads;
    let mut output = vec![E::default(); rows * shapes.value_dim];
    let mut inverse = vec![E::default(); rows * recurrence.window_rows()];
    let size = shapes.state();
    let slots = recurrence.n_slots().max(1);
    let mut states = vec![E::Compute::ZERO; slots * shapes.heads * size];
    {
        let output = DisjointMut::new(&mut output);
        let inverse = DisjointMut::new(&mut inverse);
        for level in recurrence.levels() {
            let tasks = (0..level.len() * shapes.key_heads).into_par_iter();
            let kept: Vec<_> = tasks
                .map_init(Scratch::default, |scratch, task| {
                    let path = level.start + task / shapes.key_heads;
                    let key_head = task % shapes.key_heads;
                    walk(problem, path, key_head, &states, &output, &inverse, scratch)
                })
                .collect();
            for KeptState { slot, head, state } in kept.into_iter().flatten() {
                states[(slot * shapes.heads + head) * size..][..size].copy_from_slice(&state);
            }
        }
    }
    Forward {
        output,
        states,
        inverse,
    }
}

/// The windows of a path, for the value heads of a key head.
fn walk<E: Storage>(
    problem: &Problem<'_, E>,
    path: usize,
    key_head: usize,
    states: &[E::Compute],
    output: &DisjointMut<'_, E>,
    inverse: &DisjointMut<'_, E>,
    scratch: &mut Scratch<E::Compute>,
) -> Vec<KeptState<E::Compute>> {
    let (shapes, recurrence) = (&problem.shapes, problem.recurrence);
    let heads = key_head * shapes.group()..(key_head + 1) * shapes.group();
    let entry = recurrence.path_entries()[path];
    let mut running: Vec<Vec<E::Compute>> = heads
        .clone()
        .map(|head| match problem.entry(entry, head, states) {
            Some(state) => state.to_vec(),
            None => vec![E::Compute::ZERO; shapes.state()],
        })
        .collect();
    let mut kept = Vec::new();
    let offsets = recurrence.path_offsets();
    let (first, end) = (offsets[path] as usize, offsets[path + 1] as usize);
    for index in first..end {
        let window = Window::new(recurrence, index);
        scratch.keys.load(problem, &window, key_head);
        for (head, state) in heads.clone().zip(&mut running) {
            scratch.compute(problem, &window, head, state);
            scratch.store(problem, &window, head, output, inverse);
            if window.slot.is_some() || index + 1 < end {
                let (keys, gates) = (&scratch.keys, &scratch.gates);
                scratch
                    .entered
                    .leave(state, &mut scratch.scaled, keys, gates);
            }
            kept.extend(window.slot.map(|slot| KeptState {
                slot,
                head,
                state: state.clone(),
            }));
        }
    }
    kept
}

impl<T: Real> Scratch<T> {
    /// Leaves output and inverse of a window in the buffers.
    fn compute<E: Storage<Compute = T>>(
        &mut self,
        problem: &Problem<'_, E>,
        window: &Window,
        head: usize,
        entry: &[T],
    ) {
        let (rows, shapes) = (window.len(), &problem.shapes);
        self.gates.load(problem, window, head);
        let (keys, gates) = (&self.keys, &self.gates);
        invert(&mut self.inverse, window, &keys.similarity, &gates.beta);
        mix(&mut self.mixing, gates, &self.inverse);
        self.entered
            .load(problem, window, head, keys, gates, &self.mixing, entry);

        // O = exp(G) Q H + P U
        scale_rows(&mut self.scaled, &keys.query, &gates.from_entry);
        self.scores.clear();
        let scores = keys.scores.iter().zip(&gates.decay);
        self.scores
            .extend(scores.map(|(&score, &decay)| score * decay));
        let output = sized(&mut self.output, rows * shapes.value_dim);
        multiply(
            output,
            shapes.keys(&self.scaled),
            shapes.values(entry),
            false,
        );
        multiply(
            output,
            square(&self.scores, rows),
            shapes.values(&self.entered.update),
            true,
        );
    }

    fn store<E: Storage<Compute = T>>(
        &self,
        problem: &Problem<'_, E>,
        window: &Window,
        head: usize,
        output: &DisjointMut<'_, E>,
        inverse: &DisjointMut<'_, E>,
    ) {
        let (rows, heads) = (window.len(), problem.shapes.heads);
        let targets = [
            (output, &self.output, problem.shapes.value_dim),
            (inverse, &self.inverse, problem.recurrence.window_rows()),
        ];
        for (target, values, width) in targets {
            let values = values.chunks_exact(values.len() / rows);
            for (row, values) in window.rows.clone().zip(values) {
                let start = (row * heads + head) * width;
                // SAFETY: each row is in one window, and each head of a path in one task.
                let target = unsafe { target.slice(start..start + values.len()) };
                for (target, &value) in target.iter_mut().zip(values) {
                    *target = E::narrow(value);
                }
            }
        }
    }
}
