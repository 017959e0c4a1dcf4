//! The kernel of the backward pass: the gradient of a chunk of logits.

// Clippy suggests iterators, which kernels do not have.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{RowGroups, address_type, cubes, elem, empty, row_sum};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::head::{Head, cube_per_row, logits_vector, product, slice_rows};
use super::softmax::{Occurrences, OccurrencesLaunch};
use crate::product::Form;

/// Maximum number of vectors of a row of logits per unit.
const VECTORS_PER_UNIT: u32 = 16;

/// Of the rows and their occurrences, what the gradient of the logits is made of.
#[derive(CubeType, CubeLaunch)]
struct RowGradients {
    log_sum_exps: Box<[f32]>,
    entropies: Box<[f32]>,
    grads: Box<[f32]>,
    entropy_grads: Box<[f32]>,
}

/// A chunk of the vocabulary, for all rows.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Chunk {
    rows: usize,
    /// Vectors of a row.
    width: usize,
    /// Vectors from a row of logits to the next.
    stride: usize,
    /// Vectors from a row of the result to the next.
    output_stride: usize,
    /// The first token of the chunk.
    first_token: usize,
    /// Blocks of columns of a row.
    blocks: usize,
}

/// Compile-time parameters of the kernel, besides its element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Plan {
    entropy: bool,
    in_place: bool,
    groups: RowGroups,
}

/// Logits of a chunk of the vocabulary -> their gradient: the sum over the row's occurrences of
/// `grad * (onehot(target) - p) - grad_entropy * p * (ln p + H)`, the second term if `entropy`. A
/// cube processes a block of columns of one row. With `in_place`, `output` is `logits`.
#[cube(launch_unchecked, address_type = "dynamic")]
fn gradient_kernel<O: Float, I: Int, N: Size>(
    logits: &[Vector<f32, N>],
    occurrences: &Occurrences<I>,
    of_rows: &RowGradients,
    output: &mut [Vector<O, N>],
    chunk: Chunk,
    #[comptime] plan: Plan,
    #[define(O, I)] _dtypes: [ElemType; 2],
) {
    let entropy = comptime!(plan.entropy);
    let groups = comptime!(plan.groups);
    let (width, first_token, blocks) = (chunk.width, chunk.first_token, chunk.blocks);
    let row = CUBE_POS / blocks;
    if row >= chunk.rows {
        terminate!();
    }
    let units = comptime!(groups.units as usize);
    let block_width = comptime!((groups.units * VECTORS_PER_UNIT) as usize);
    let first_column = CUBE_POS % blocks * block_width;
    let mut end_column = first_column + block_width;
    if end_column > width {
        end_column = width;
    }
    let base = row * chunk.stride;
    let output_base = row * chunk.output_stride;
    let start = occurrences.starts[row] as usize;
    let end = occurrences.starts[row + 1] as usize;

    let mut part = 0.0f32;
    let mut occurrence = start + UNIT_POS as usize;
    while occurrence < end {
        part += of_rows.grads[occurrence];
        occurrence += units;
    }
    let total = row_sum(part, groups);
    let log_sum_exp = of_rows.log_sum_exps[row];
    let mut entropy_grad = 0.0f32;
    let mut row_entropy = 0.0f32;
    if comptime!(entropy) {
        let mut entropy_part = 0.0f32;
        let mut occurrence = start + UNIT_POS as usize;
        while occurrence < end {
            entropy_part += of_rows.entropy_grads[occurrence];
            occurrence += units;
        }
        entropy_grad = row_sum(entropy_part, groups);
        row_entropy = of_rows.entropies[start];
    }

    let mut column = first_column + UNIT_POS as usize;
    while column < end_column {
        let log_p = logits[base + column] - Vector::new(log_sum_exp);
        output[output_base + column] = Vector::cast_from(off_target::<N>(
            log_p,
            total,
            entropy_grad,
            row_entropy,
            entropy,
        ));
        column += units;
    }
    sync_storage();

    // The first occurrence with a target in a vector adds all occurrences with targets in that
    // vector.
    occurrence = start + UNIT_POS as usize;
    while occurrence < end {
        let target = usize::cast_from(occurrences.targets[occurrence]);
        // A target below the block wraps to an index past its end.
        let in_block = target >= first_token + first_column * N::value()
            && target < first_token + end_column * N::value();
        if in_block {
            let column = (target - first_token) / N::value();
            let mut is_first = true;
            for other in start..occurrence {
                let other_target = usize::cast_from(occurrences.targets[other]);
                if other_target >= first_token
                    && (other_target - first_token) / N::value() == column
                {
                    is_first = false;
                }
            }
            if is_first {
                let mut value = if comptime!(plan.in_place) {
                    Vector::<f32, N>::cast_from(output[output_base + column])
                } else {
                    let log_p = logits[base + column] - Vector::new(log_sum_exp);
                    off_target::<N>(log_p, total, entropy_grad, row_entropy, entropy)
                };
                for other in occurrence..end {
                    let other_target = usize::cast_from(occurrences.targets[other]);
                    #[unroll]
                    for i in 0..N::value() {
                        if other_target == first_token + column * N::value() + i {
                            value.insert(i, value.extract(i) + of_rows.grads[other]);
                        }
                    }
                }
                output[output_base + column] = Vector::cast_from(value);
            }
        }
        occurrence += units;
    }
}

/// The gradient of a logit without the terms of targets.
#[cube]
fn off_target<N: Size>(
    log_p: Vector<f32, N>,
    total: f32,
    entropy_grad: f32,
    row_entropy: f32,
    #[comptime] entropy: bool,
) -> Vector<f32, N> {
    let p = log_p.exp();
    if comptime!(entropy) {
        let excess = log_p + Vector::new(row_entropy);
        -(p * (Vector::new(total) + excess * Vector::new(entropy_grad)))
    } else {
        -(p * Vector::new(total))
    }
}

/// The inputs of the gradient of the logits.
pub(super) struct OccurrenceGradients {
    /// `[projected rows]`
    pub(super) log_sum_exps: CubeTensor,
    /// `[n]`, read if `entropy`.
    pub(super) entropies: CubeTensor,
    /// `[n]`
    pub(super) grad: CubeTensor,
    /// `[n]`, read if `entropy`.
    pub(super) grad_entropy: CubeTensor,
    /// Whether entropies have gradients.
    pub(super) entropy: bool,
}

impl OccurrenceGradients {
    /// The gradient of the logits of some tokens, `[projected rows, tokens]`, in the dtype of the
    /// products.
    pub(super) fn grad_logits(&self, head: &Head<'_>, tokens: Range<usize>) -> CubeTensor {
        let rows = head.plan.projected_rows();
        let client = head.weight.client.clone();
        let rows_of_head = slice_rows(&head.weight, tokens.clone());
        let states = head.states.clone();
        let logits = product(Form::RightTransposed, states, rows_of_head, DType::F32);
        let dtype = head.weight.dtype;
        let in_place = dtype == DType::F32;
        let output = match in_place {
            true => logits.clone(),
            false => empty(&logits, [rows, tokens.len()], dtype),
        };
        let vector = logits_vector(&logits);
        let (stride, output_stride) = (logits.meta.strides()[0], output.meta.strides()[0]);
        let width = tokens.len() / vector;
        let groups = cube_per_row(&logits);
        let blocks = width.div_ceil((groups.units * VECTORS_PER_UNIT) as usize);
        let (count, dim) = cubes(&client, rows * blocks, groups.units);
        // SAFETY: the shapes are those of the tensors; targets outside `tokens` store nothing.
        unsafe {
            gradient_kernel::launch_unchecked(
                &client,
                count,
                dim,
                address_type(&[&logits, &output, &head.targets]),
                vector,
                logits.clone().into_buffer_arg(),
                OccurrencesLaunch::new(head.targets.clone().into_buffer_arg(), head.starts.arg()),
                RowGradientsLaunch::new(
                    self.log_sum_exps.clone().into_buffer_arg(),
                    self.entropies.clone().into_buffer_arg(),
                    self.grad.clone().into_buffer_arg(),
                    self.grad_entropy.clone().into_buffer_arg(),
                ),
                match in_place {
                    true => output.as_tensor_alias(0).into_buffer_arg(),
                    false => output.clone().into_buffer_arg(),
                },
                ChunkLaunch::new(
                    rows,
                    width,
                    stride / vector,
                    output_stride / vector,
                    tokens.start,
                    blocks,
                ),
                Plan {
                    entropy: self.entropy,
                    in_place,
                    groups,
                },
                [elem(dtype), elem(head.targets.dtype)],
            );
        }
        output
    }
}
