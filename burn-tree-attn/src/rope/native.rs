//! For CPU tensors in memory: one pass over the rows, angles from a table.

use rayon::prelude::*;

use super::settings::{RopeDirection, RopePairing, RopeSettings};
use burn_tree_kit::cpu::{Real, Storage};

/// Rotates `x [B, H, N, D]`; `positions [B, N]`.
pub(crate) fn rope<E: Storage>(
    x: &[E],
    [batch, heads, queries, head_dim]: [usize; 4],
    positions: &[i64],
    settings: RopeSettings,
) -> Vec<E> {
    #[cfg(test)]
    crate::calls::record("rope");
    let mut out = vec![E::default(); x.len()];
    if x.is_empty() {
        return out;
    }
    let frequencies = settings.inverse_frequencies().map(Real::from_f64);
    let frequencies: Vec<E::Compute> = frequencies.collect();
    let factor = Real::from_f64(settings.scaling.attention_factor());
    let table = AngleTable::new(positions, &frequencies, factor, settings.direction);
    let rotate = match settings.pairing {
        RopePairing::Halves => rotate_halves::<E>,
        RopePairing::Interleaved => rotate_neighbours::<E>,
    };
    let head_len = queries * head_dim;
    // Pieces of a head, so that there is work for every thread.
    let piece_rows = queries.div_ceil(rayon::current_num_threads().div_ceil(batch * heads));
    out.par_chunks_mut(head_len)
        .zip(x.par_chunks(head_len))
        .enumerate()
        .for_each(|(head, (out, x))| {
            let positions = &positions[head / heads * queries..][..queries];
            let pieces = out.par_chunks_mut(piece_rows * head_dim);
            let pieces = pieces.zip(x.par_chunks(piece_rows * head_dim));
            pieces
                .zip(positions.par_chunks(piece_rows))
                .for_each(|((out, x), positions)| {
                    let rows = out.chunks_exact_mut(head_dim).zip(x.chunks_exact(head_dim));
                    for ((out, x), &position) in rows.zip(positions) {
                        rotate(out, x, table.row(position));
                    }
                });
        });
    out
}

/// Turns the pairs `(i, i + half)` of a row by `half` cosines and sines.
fn rotate_halves<E: Storage>(out: &mut [E], x: &[E], (cos, sin): (&[E::Compute], &[E::Compute])) {
    let half = cos.len();
    let sin = &sin[..half];
    let (first, rest) = x.split_at(half);
    let (second, rest) = rest.split_at(half);
    let (out_first, out_rest) = out.split_at_mut(half);
    let (out_second, out_rest) = out_rest.split_at_mut(half);
    for i in 0..half {
        let (a, b) = (first[i].widen(), second[i].widen());
        out_first[i] = E::narrow(a * cos[i] - b * sin[i]);
        out_second[i] = E::narrow(b * cos[i] + a * sin[i]);
    }
    out_rest.copy_from_slice(rest);
}

/// Turns the pairs `(2 i, 2 i + 1)` of a row by as many cosines and sines.
fn rotate_neighbours<E: Storage>(
    out: &mut [E],
    x: &[E],
    (cos, sin): (&[E::Compute], &[E::Compute]),
) {
    let (pairs, rest) = x.split_at(2 * cos.len());
    let (out_pairs, out_rest) = out.split_at_mut(2 * cos.len());
    let (pairs, out_pairs) = (pairs.as_chunks::<2>().0, out_pairs.as_chunks_mut::<2>().0);
    for (((out, pair), &cos), &sin) in out_pairs.iter_mut().zip(pairs).zip(cos).zip(sin) {
        let [a, b] = pair.map(E::widen);
        *out = [E::narrow(a * cos - b * sin), E::narrow(b * cos + a * sin)];
    }
    out_rest.copy_from_slice(rest);
}

/// Cosines and sines of every position that occurs: the tokens of a tree share positions.
struct AngleTable<T> {
    /// Positions in ascending order, each once.
    positions: Vec<i64>,
    half: usize,
    cos: Vec<T>,
    sin: Vec<T>,
}

impl<T: Real> AngleTable<T> {
    fn new(positions: &[i64], frequencies: &[T], factor: T, direction: RopeDirection) -> Self {
        let mut positions = positions.to_vec();
        positions.sort_unstable();
        positions.dedup();
        let half = frequencies.len();
        let mut cos = vec![T::ZERO; positions.len() * half];
        let mut sin = cos.clone();
        let rows = cos
            .par_chunks_exact_mut(half)
            .zip(sin.par_chunks_exact_mut(half));
        rows.zip(&positions).for_each(|((cos, sin), &position)| {
            for ((cos, sin), &frequency) in cos.iter_mut().zip(sin).zip(frequencies) {
                let (s, c) = T::angle(position, frequency).sin_cos();
                let (s, c) = (s * factor, c * factor);
                *cos = c;
                *sin = match direction {
                    RopeDirection::Forward => s,
                    RopeDirection::Backward => -s,
                };
            }
        });
        Self {
            positions,
            half,
            cos,
            sin,
        }
    }

    #[inline(always)]
    fn row(&self, position: i64) -> (&[T], &[T]) {
        // Without gaps, the usual case, the index is the distance from the first.
        let guess = (position - self.positions[0]) as usize;
        let index = if self.positions.get(guess) == Some(&position) {
            guess
        } else {
            self.positions.partition_point(|&known| known < position)
        };
        let at = index * self.half..(index + 1) * self.half;
        (&self.cos[at.clone()], &self.sin[at])
    }
}
