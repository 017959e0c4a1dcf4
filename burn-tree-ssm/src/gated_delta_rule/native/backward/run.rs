//! The windows of one run, for the value heads of one key head.

use std::ops::Range;

use burn_tree_kit::cpu::{Real, Storage};

use super::super::buffers::zeroed;
use super::super::problem::Problem;
use super::super::window::Window;
use super::scratch::Scratch;
use super::tensors::{Results, Targets};
use super::window_gradients::WindowStates;

/// The work of a task.
pub(super) struct Run<'a, E: Storage> {
    problem: &'a Problem<'a, E>,
    results: &'a Results<'a, E>,
    key_head: usize,
    /// The value heads.
    heads: Range<usize>,
    windows: Vec<Window>,
    /// The state with which it, or each of its windows, starts.
    entry: i32,
    /// Whether every window starts from the entry.
    siblings: bool,
}

/// A state for each head.
type HeadStates<T> = Vec<Vec<T>>;

impl<'a, E: Storage> Run<'a, E> {
    pub(super) fn new(
        problem: &'a Problem<'a, E>,
        results: &'a Results<'a, E>,
        run: usize,
        key_head: usize,
    ) -> Self {
        let (recurrence, group) = (problem.recurrence, problem.shapes.group());
        let runs = recurrence.runs();
        Self {
            problem,
            results,
            key_head,
            heads: key_head * group..(key_head + 1) * group,
            windows: runs
                .windows(run)
                .map(|index| Window::new(recurrence, index))
                .collect(),
            entry: runs.entry(run),
            siblings: runs.are_siblings(run),
        }
    }

    /// Stores the gradients of all rows. Returns that of the state with which the run starts,
    /// `[group, DK, DV]`.
    pub(super) fn gradients(
        &self,
        grad_slots: &[E::Compute],
        targets: &Targets<'_, E>,
        scratch: &mut Scratch<E::Compute>,
    ) -> Vec<E::Compute> {
        let (shapes, size) = (&self.problem.shapes, self.problem.shapes.state());
        let states = self.states(scratch);
        let group_size = self.heads.len() * size;
        let mut grad_entries = vec![E::Compute::ZERO; group_size];
        let mut grad_exits: Option<Vec<E::Compute>> = None;
        for (index, window) in self.windows.iter().enumerate().rev() {
            if let Some(slot) = window.slot {
                let slots = &grad_slots[(slot * shapes.heads + self.heads.start) * size..];
                let grads = grad_exits.get_or_insert_with(|| vec![E::Compute::ZERO; group_size]);
                for (sum, &grad) in grads.iter_mut().zip(slots) {
                    *sum += grad;
                }
            }
            if !self.siblings {
                grad_entries.fill(E::Compute::ZERO);
            }
            let entries = &states[if self.siblings { 0 } else { index }];
            let grads = grad_exits.as_deref();
            self.window(window, entries, grads, &mut grad_entries, targets, scratch);
            if !self.siblings && index > 0 {
                grad_exits = Some(grad_entries.clone());
            }
        }
        grad_entries
    }

    /// The states with which each window starts (one set of them for all siblings), as the forward
    /// pass had them.
    fn states(&self, scratch: &mut Scratch<E::Compute>) -> Vec<HeadStates<E::Compute>> {
        let zero = || vec![E::Compute::ZERO; self.problem.shapes.state()];
        let of_head = |head| self.problem.entry(self.entry, head, self.results.states);
        let entries = self.heads.clone().map(of_head);
        let entries = entries.map(|state| state.map_or_else(zero, <[_]>::to_vec));
        let mut states: Vec<HeadStates<_>> = vec![entries.collect()];
        if self.siblings {
            return states;
        }
        for window in &self.windows[..self.windows.len() - 1] {
            let mut next = states[states.len() - 1].clone();
            scratch.keys.load(self.problem, window, self.key_head);
            for (head, state) in self.heads.clone().zip(&mut next) {
                scratch.enter(self.problem, self.results, window, head, state);
                let (keys, gates) = (&scratch.keys, &scratch.gates);
                scratch
                    .entered
                    .leave(state, &mut scratch.scaled, keys, gates);
            }
            states.push(next);
        }
        states
    }

    /// Stores the gradients of the rows of a window, and adds those of its entry states to
    /// `grad_entries`; `grad_exits` are those of the states after it.
    fn window(
        &self,
        window: &Window,
        entries: &HeadStates<E::Compute>,
        grad_exits: Option<&[E::Compute]>,
        grad_entries: &mut [E::Compute],
        targets: &Targets<'_, E>,
        scratch: &mut Scratch<E::Compute>,
    ) {
        let (problem, results) = (self.problem, self.results);
        let (shapes, size) = (&problem.shapes, problem.shapes.state());
        scratch.keys.load(problem, window, self.key_head);
        let sums = window.len() * shapes.key_dim;
        zeroed(&mut scratch.grad_query, sums);
        zeroed(&mut scratch.grad_key, sums);
        for (in_group, head) in self.heads.clone().enumerate() {
            let part = in_group * size..(in_group + 1) * size;
            let states = WindowStates {
                entry: &entries[in_group],
                grad_exit: grad_exits.map(|grads| &grads[part.clone()]),
            };
            let grad_entry = &mut grad_entries[part];
            scratch.enter(problem, results, window, head, states.entry);
            scratch.compute(problem, results, window, head, states, grad_entry);
            scratch.store_head(problem, window, head, targets);
        }
        scratch.store_key_head(problem, window, self.key_head, targets);
    }
}
