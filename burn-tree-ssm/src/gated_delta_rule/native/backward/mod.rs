//! Backward pass: from the last level to the first, a run and a key head at a time. Within a run,
//! the states at its windows are recomputed, then the windows are taken in reverse.

mod run;
mod scratch;
mod tensors;
mod window_gradients;

use burn_tree_kit::cpu::{DisjointMut, Real, Storage};
use rayon::prelude::*;

use super::problem::Problem;
use crate::recurrence::ENTRY_ZERO;
use run::Run;
use scratch::Scratch;
use tensors::{Gradients, Targets};

pub(crate) use tensors::Results;

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
                Run::new(problem, results, run, task % shapes.key_heads).gradients(
                    &grad_slots,
                    &targets,
                    scratch,
                )
            })
            .collect();
        // In the order of the runs.
        for (task, grads) in entries.into_iter().enumerate() {
            let state = match runs.entry(level.start + task / shapes.key_heads) {
                ENTRY_ZERO => continue,
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
