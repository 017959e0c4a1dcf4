//! Softmax of a chunk of logits: vectorised passes over each row.

use burn_tree_kit::cpu::{Number, fold};
use burn_tree_kit::vectorised_fn;
use rayon::prelude::*;

/// A prediction of a row of the chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick<T> {
    /// Token predicted.
    pub(super) target: usize,
    /// Gradient of its log-probability (unused in the forward pass).
    pub(super) grad: T,
}

/// Statistics of one row of logits.
#[derive(Clone, Debug)]
pub(super) struct RowStatistics<T> {
    pub(super) log_sum_exp: T,
    /// 0 if it is not requested.
    pub(super) entropy: T,
    /// Log-probabilities of the row's picks.
    pub(super) log_probs: Vec<T>,
}

/// Sums over one row of logits x: the maximum m, the sum of e^(x - m), and, if the entropy is
/// requested, the sum of (x - m) e^(x - m).
#[derive(Default)]
struct Softmax<T> {
    max: T,
    sum: T,
    weighted: T,
}

vectorised_fn! {
    /// Overwrites the row.
    fn softmax_row<T: Number>(row: &mut [T], softmax: &mut Softmax<T>, entropy: bool) {
        let max = fold(row, T::NEG_INFINITY, |a, b| if a > b { a } else { b });
        for x in row.iter_mut() {
            *x = *x - max;
        }
        let mut weighted = T::ZERO;
        if entropy {
            // Partial sums in lanes, as in `fold`.
            let mut products = [T::ZERO; 64];
            for part in row.chunks(64) {
                for (product, &x) in products.iter_mut().zip(part) {
                    *product += x.exp() * x;
                }
            }
            weighted = fold(&products, T::ZERO, |a, b| a + b);
        }
        for x in row.iter_mut() {
            *x = x.exp();
        }
        let sum = fold(row, T::ZERO, |a, b| a + b);
        *softmax = Softmax { max, sum, weighted };
    }
}

vectorised_fn! {
    /// Logits -> `-p * total`.
    fn grad_row<T: Number>(row: &mut [T], log_sum_exp: T, total: T) {
        for x in row.iter_mut() {
            *x = -((*x - log_sum_exp).exp() * total);
        }
    }
}

vectorised_fn! {
    /// Logits -> `-p * (total + grad * (ln p + entropy))`.
    fn grad_row_with_entropy<T: Number>(row: &mut [T], log_sum_exp: T, total: T, of: EntropyGrad<T>) {
        for x in row.iter_mut() {
            let log_p = *x - log_sum_exp;
            *x = -(log_p.exp() * (total + of.grad * (log_p + of.entropy)));
        }
    }
}

/// The entropy of a row and its gradient, summed over the row's picks.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntropyGrad<T> {
    pub(super) entropy: T,
    pub(super) grad: T,
}

/// Statistics of each row of `logits [rows, vocab]`, which are overwritten; `picks` are the
/// predictions of each row.
pub(super) fn statistics<T: Number>(
    logits: &mut [T],
    vocab: usize,
    picks: &[Vec<Pick<T>>],
    entropy: bool,
) -> Vec<RowStatistics<T>> {
    logits
        .par_chunks_mut(vocab)
        .zip(picks)
        .map(|(row, picks)| {
            let mut log_probs: Vec<T> = picks.iter().map(|pick| row[pick.target]).collect();
            let mut softmax = Softmax::default();
            softmax_row(row, &mut softmax, entropy);
            let Softmax { max, sum, weighted } = softmax;
            let log_sum = sum.ln();
            for log_prob in &mut log_probs {
                *log_prob = *log_prob - max - log_sum;
            }
            RowStatistics {
                log_sum_exp: max + log_sum,
                entropy: if entropy {
                    log_sum - weighted / sum
                } else {
                    T::ZERO
                },
                log_probs,
            }
        })
        .collect()
}

/// Replaces `logits [rows, vocab]` by their gradient: the sum over the row's picks of `grad *
/// (onehot(target) - p)`, plus the gradient by the entropy of each row, if given.
pub(super) fn gradients<T: Number>(
    logits: &mut [T],
    vocab: usize,
    log_sum_exp: &[T],
    picks: &[Vec<Pick<T>>],
    entropies: Option<&[EntropyGrad<T>]>,
) {
    logits
        .par_chunks_mut(vocab)
        .zip(log_sum_exp)
        .zip(picks)
        .enumerate()
        .for_each(|(index, ((row, &log_sum_exp), picks))| {
            let mut total = T::ZERO;
            for pick in picks {
                total += pick.grad;
            }
            match entropies {
                None => grad_row(row, log_sum_exp, total),
                Some(of) => grad_row_with_entropy(row, log_sum_exp, total, of[index]),
            }
            for pick in picks {
                row[pick.target] += pick.grad;
            }
        });
}
