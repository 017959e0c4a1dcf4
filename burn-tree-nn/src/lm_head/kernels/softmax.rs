//! The kernel of the forward pass: statistics of a chunk of logits.

// Clippy suggests iterators, which kernels do not have.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{RowGroups, address_type, cubes, elem, row_max, row_sum};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::head::{Head, cube_per_row, logits_vector};

/// The occurrences of each row.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Occurrences<I: Int> {
    pub targets: Box<[I]>,
    /// First occurrence of each row, and their number at the end.
    pub starts: Box<[u32]>,
}

/// Results of the forward pass, as a kernel writes them.
#[derive(CubeType, CubeLaunch)]
struct StatisticsBuffers {
    log_probs: Box<[f32]>,
    log_sum_exps: Box<[f32]>,
    entropies: Box<[f32]>,
}

/// A chunk of logits.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Chunk {
    /// Number of its first row among the projected rows.
    first_row: usize,
    rows: usize,
    /// Vectors of a row.
    width: usize,
    /// Vectors from a row to the next.
    stride: usize,
}

/// Log-sum-exp and entropy of each row of a chunk, and the log-probabilities of its occurrences;
/// one cube per row.
#[cube(launch_unchecked, address_type = "dynamic")]
fn softmax_kernel<I: Int, N: Size>(
    logits: &[Vector<f32, N>],
    occurrences: &Occurrences<I>,
    statistics: &mut StatisticsBuffers,
    chunk: Chunk,
    #[comptime] entropy: bool,
    #[comptime] groups: RowGroups,
    #[define(I)] _dtype: ElemType,
) {
    if CUBE_POS >= chunk.rows {
        terminate!();
    }
    let width = chunk.width;
    let units = comptime!(groups.units as usize);
    let base = CUBE_POS * chunk.stride;

    // For the unit's logits x: the maximum m, the sum of e^(x - m), and the sum of (x - m) e^(x -
    // m). The initial maximum is finite, so that no difference is NaN.
    let mut largest = f32::new(-3.0e38);
    let mut sum = 0.0f32;
    let mut weighted = 0.0f32;
    let mut column = UNIT_POS as usize;
    while column < width {
        let x = logits[base + column];
        let mut new_largest = largest;
        #[unroll]
        for i in 0..N::value() {
            new_largest = new_largest.max(x.extract(i));
        }
        if new_largest > largest {
            let shift = largest - new_largest;
            let scale = shift.exp();
            if comptime!(entropy) {
                weighted = scale * (weighted + shift * sum);
            }
            sum *= scale;
            largest = new_largest;
        }
        let shifted = x - Vector::new(largest);
        let exp = shifted.exp();
        sum += exp.vector_sum();
        if comptime!(entropy) {
            weighted += (exp * shifted).vector_sum();
        }
        column += units;
    }

    let row_largest = row_max(largest, groups);
    let shift = largest - row_largest;
    let scale = shift.exp();
    let row_total = row_sum(sum * scale, groups);
    let log_sum = row_total.ln();
    let log_sum_exp = row_largest + log_sum;
    let row = chunk.first_row + CUBE_POS;
    let mut row_entropy = 0.0f32;
    if comptime!(entropy) {
        // A unit without logits must not contribute 0 * inf.
        let mut part = 0.0f32;
        if sum > 0.0f32 {
            part = scale * (weighted + shift * sum);
        }
        row_entropy = log_sum - row_sum(part, groups) / row_total;
    }
    if UNIT_POS == 0 {
        statistics.log_sum_exps[row] = log_sum_exp;
    }

    let mut occurrence = occurrences.starts[row] as usize + UNIT_POS as usize;
    while occurrence < occurrences.starts[row + 1] as usize {
        let target = usize::cast_from(occurrences.targets[occurrence]);
        // A target outside the vocabulary must not give a valid probability; not all runtimes have
        // NaN.
        let mut log_prob = f32::new(-3.0e38);
        if target < width * N::value() {
            let x = logits[base + target / N::value()];
            log_prob = x.extract_dynamic(target % N::value()) - log_sum_exp;
        }
        statistics.log_probs[occurrence] = log_prob;
        if comptime!(entropy) {
            statistics.entropies[occurrence] = row_entropy;
        }
        occurrence += units;
    }
}

/// Results of the forward pass.
pub(super) struct Statistics {
    /// `[n]`
    pub(super) log_probs: CubeTensor,
    /// `[projected rows]`
    pub(super) log_sum_exps: CubeTensor,
    /// `[n]`, written only if `entropy`.
    pub(super) entropies: CubeTensor,
    /// Whether entropies are computed.
    pub(super) entropy: bool,
}

impl Statistics {
    /// Computes the statistics of the projected rows `rows` from their `logits [rows, vocab]`.
    pub(super) fn compute(&self, head: &Head<'_>, logits: &CubeTensor, rows: Range<usize>) {
        let client = logits.client.clone();
        let [vocab, _] = head.shape();
        let groups = cube_per_row(logits);
        let vector = logits_vector(logits);
        let stride = logits.meta.strides()[0];
        let (count, dim) = cubes(&client, rows.len(), groups.units);
        // SAFETY: the shapes are those of the tensors; the kernel compares targets with the
        // vocabulary.
        unsafe {
            softmax_kernel::launch_unchecked(
                &client,
                count,
                dim,
                address_type(&[logits, &head.targets]),
                vector,
                logits.clone().into_buffer_arg(),
                OccurrencesLaunch::new(head.targets.clone().into_buffer_arg(), head.starts.arg()),
                StatisticsBuffersLaunch::new(
                    self.log_probs.clone().into_buffer_arg(),
                    self.log_sum_exps.clone().into_buffer_arg(),
                    self.entropies.clone().into_buffer_arg(),
                ),
                ChunkLaunch::new(rows.start, rows.len(), vocab / vector, stride / vector),
                self.entropy,
                groups,
                elem(head.targets.dtype),
            );
        }
    }
}
