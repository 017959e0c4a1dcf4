//! Gradients inside the windows, all at once, from those of the steps.

use burn::backend::Backend;

use super::array::Array;
use super::step_gradients::{StepGradients, join};
use super::windows::Windows;

/// Gradients of the rows of all windows.
pub(super) struct WindowGradients<B: Backend> {
    /// `[W, HV, C, DK]` of the scaled query.
    pub(super) query: Array<B>,
    /// `[W, HV, C, DK]`
    pub(super) key: Array<B>,
    /// `[W, HV, C, DV]`
    pub(super) value: Array<B>,
    /// `[W, HV, C, 1]`
    pub(super) log_decay: Array<B>,
    /// `[W, HV, C, 1]`
    pub(super) beta: Array<B>,
}

impl<B: Backend> WindowGradients<B> {
    pub(super) fn new(windows: &Windows<B>, steps: &[StepGradients<B>]) -> Self {
        let local = &windows.local;
        let grad_mixing =
            join(steps, |step| &step.grad_update).dot(&join(steps, |step| &step.residual).t());
        let grad_scores = windows
            .grad_output
            .dot(&join(steps, |step| &step.update).t());
        // What passes from row j to row i, and so through all log decays between them.
        let passed = &grad_scores * &local.scores + &grad_mixing * &windows.mixing;
        let grad_scores = grad_scores * &local.decay;
        let weights = grad_mixing * &local.decay;

        let (grad_similarity, beta) = through_inverse(windows, &weights);
        Self {
            query: join(steps, |step| &step.query) + grad_scores.dot(&local.key),
            key: join(steps, |step| &step.key)
                + grad_scores.t().dot(&local.query)
                + grad_similarity.dot(&local.key),
            value: join(steps, |step| &step.value),
            log_decay: log_decays(windows, steps, passed),
            beta,
        }
    }
}

/// Through the inverse: `N + N^T` and `dbeta`, from `W`.
fn through_inverse<B: Backend>(windows: &Windows<B>, weights: &Array<B>) -> (Array<B>, Array<B>) {
    let (local, inverse) = (&windows.local, &windows.inverse);
    let grad_lower = inverse
        .t()
        .dot(&(weights * local.beta.t()))
        .dot(&inverse.t());
    let grad_lower = -(&windows.tiles.ancestors * grad_lower);
    let similarity = local.similarity(&windows.tiles);
    let grad_beta = (weights * inverse).sum(2).t() + (&grad_lower * similarity).sum(3);
    let grad_similarity = &local.beta * grad_lower;
    (&grad_similarity + grad_similarity.t(), grad_beta)
}

/// The gradients of the log decays, from what passes between the rows of a window.
fn log_decays<B: Backend>(
    windows: &Windows<B>,
    steps: &[StepGradients<B>],
    passed: Array<B>,
) -> Array<B> {
    let tiles = &windows.tiles;
    // From ancestors of row l (columns of `passed`) to l and its descendants (rows of it).
    let heads = windows.local.value.size(1);
    let pairs = [tiles.count, heads, tiles.size, tiles.size];
    let ancestors = tiles.ancestors.clone().expand(pairs);
    let passed = passed.dot(&ancestors.t()) + join(steps, |step| &step.from_entry);
    let passed_exit = (&tiles.ancestors * join(steps, |step| &step.to_exit).t()).sum(3)
        + &tiles.to_exit * join(steps, |step| &step.through);
    (&tiles.mask * passed).sum(2).t() + passed_exit
}
