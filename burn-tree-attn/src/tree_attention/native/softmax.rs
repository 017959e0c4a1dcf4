//! Row operations on blocks of scores, vectorised by the compiler for the processor at hand.

use burn_tree_kit::cpu::{Real, dot, fold};
use burn_tree_kit::vectorised_fn;

/// Softmax of rows that arrive block by block: largest score so far and sum of exponentials.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnlineRow<T> {
    pub max: T,
    pub sum: T,
}

impl<T: Real> OnlineRow<T> {
    pub(super) const EMPTY: Self = Self {
        max: T::NEG_INFINITY,
        sum: T::ZERO,
    };

    /// Log of the sum of exponentials of all scores; 0 if there were none.
    pub(super) fn log_sum_exp(&self) -> T {
        if self.sum > T::ZERO {
            self.max + self.sum.ln()
        } else {
            T::ZERO
        }
    }

    /// Replaces scores by their exponentials relative to the new largest one; returns the factor
    /// for what was summed before.
    #[inline(always)]
    fn absorb(&mut self, scores: &mut [T]) -> T {
        let max = fold(scores, self.max, |a, b| if a > b { a } else { b });
        if max == T::NEG_INFINITY {
            // Nothing visible, here or before.
            scores.fill(T::ZERO);
            return T::ONE;
        }
        for score in scores.iter_mut() {
            *score = (*score - max).exp();
        }
        let factor = (self.max - max).exp();
        self.sum = self.sum * factor + fold(scores, T::ZERO, |a, b| a + b);
        self.max = max;
        factor
    }
}

vectorised_fn! {
    /// Takes a block of scores `[rows, n_keys]` into the softmax of its rows: scores become
    /// exponentials, and `output [rows, width]`, summed so far, is scaled to match.
    pub(super) fn absorb_block<T: Real>(
        rows: &mut [OnlineRow<T>],
        scores: &mut [T],
        n_keys: usize,
        output: &mut [T],
        width: usize,
    ) {
        let scores = scores.chunks_exact_mut(n_keys);
        for ((row, scores), output) in rows.iter_mut().zip(scores).zip(output.chunks_exact_mut(width)) {
            let factor = row.absorb(scores);
            if factor != T::ONE {
                for out in output {
                    *out = *out * factor;
                }
            }
        }
    }
}

vectorised_fn! {
    /// Scores -> `cap * tanh(score / cap)`.
    pub(super) fn soften<T: Real>(scores: &mut [T], cap: T) {
        let inverse = T::ONE / cap;
        for score in scores.iter_mut() {
            *score = cap * (*score * inverse).tanh();
        }
    }
}

vectorised_fn! {
    /// Rows of scores become `-inf` where `hidden` is.
    pub(super) fn hide<T: Real>(scores: &mut [T], hidden: &[T]) {
        for scores in scores.chunks_exact_mut(hidden.len()) {
            for (score, &hidden) in scores.iter_mut().zip(hidden) {
                *score = if hidden < T::ZERO { hidden } else { *score };
            }
        }
    }
}

vectorised_fn! {
    /// Sums of products of rows: `sums[i] = a[i] . b[i]`.
    pub(super) fn row_products<T: Real>(sums: &mut [T], a: &[T], b: &[T], width: usize) {
        let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
        for (sum, (a, b)) in sums.iter_mut().zip(rows) {
            *sum = dot(a, b);
        }
    }
}

vectorised_fn! {
    /// Backward pass of a block `[rows, n_keys]`: capped scores -> probabilities, and gradients of
    /// the probabilities -> gradients of the scores before the cap.
    pub(super) fn differentiate_block<T: Real>(
        scores: &mut [T],
        grads: &mut [T],
        n_keys: usize,
        log_sum_exp: &[T],
        delta: &[T],
        softcap: Option<T>,
    ) {
        let rows = scores.chunks_exact_mut(n_keys).zip(grads.chunks_exact_mut(n_keys));
        for (((scores, grads), &log_sum_exp), &delta) in rows.zip(log_sum_exp).zip(delta) {
            differentiate(scores, grads, log_sum_exp, delta, softcap);
        }
    }
}

#[inline(always)]
fn differentiate<T: Real>(
    scores: &mut [T],
    grads: &mut [T],
    log_sum_exp: T,
    delta: T,
    softcap: Option<T>,
) {
    match softcap {
        None => {
            for (score, grad) in scores.iter_mut().zip(grads.iter_mut()) {
                let probability = (*score - log_sum_exp).exp();
                *grad = probability * (*grad - delta);
                *score = probability;
            }
        }
        Some(cap) => {
            let inverse = T::ONE / cap;
            for (score, grad) in scores.iter_mut().zip(grads.iter_mut()) {
                let probability = (*score - log_sum_exp).exp();
                let tanh = *score * inverse;
                // Hidden pairs have a score of -inf.
                let slope = if probability > T::ZERO {
                    T::ONE - tanh * tanh
                } else {
                    T::ZERO
                };
                *grad = probability * (*grad - delta) * slope;
                *score = probability;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_blocks_equal_rows_at_once() {
        let scores: Vec<f64> = (0..45)
            .map(|i| ((i * 37) % 23) as f64 / 3.0 - 4.0)
            .collect();
        let exact: f64 = scores.iter().map(|s| s.exp()).sum();
        let mut row = OnlineRow::EMPTY;
        let mut weighted = 0.0;
        for block in scores.chunks(7) {
            let mut block = block.to_vec();
            let factor = row.absorb(&mut block);
            weighted = weighted * factor + block.iter().sum::<f64>();
        }
        assert!((row.log_sum_exp() - exact.ln()).abs() < 1e-13);
        assert!((weighted - row.sum).abs() < 1e-13);
    }

    #[test]
    fn hidden_rows_stay_zero() {
        let mut row = OnlineRow::<f32>::EMPTY;
        let mut scores = [f32::NEG_INFINITY; 20];
        assert_eq!(row.absorb(&mut scores), 1.0);
        assert_eq!(scores, [0.0; 20]);
        assert_eq!((row.sum, row.log_sum_exp()), (0.0, 0.0));
    }
}
