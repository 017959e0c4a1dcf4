//! On CubeCL runtimes: Burn's matrix products, and one kernel per direction between them, which
//! reads each chunk of logits once.
//!
//! The forward pass takes a chunk of rows at a time. The backward pass takes a chunk of the
//! vocabulary at a time, for all rows: each chunk's part of the head's gradient is then complete,
//! and only the gradient of the states, which is smaller, is summed over chunks (in f32).

// Kernels loop over numbers.
#![allow(clippy::needless_range_loop)]

use burn::backend::{
    ops::FloatTensorOps,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::{DType, FloatDType, Slice};
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_tree_kit::cube::{
    DeviceCache, DeviceList, RowGroups, address_type, contiguous, cubes, elem, empty, has_kernels,
    plane_width, probe, row_max, row_sum, units_per_cube, vector_size,
};
use burn_tree_kit::implementation::Unavailable;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{EntropyOutput, HeadGradients, LmHeadPlan};
use crate::gather_rows;

/// Where the occurrences of each projected row start.
pub(crate) type StartsCache = DeviceCache<DeviceList>;

/// Logits alive at once if the caller does not say: 512 MiB in f32.
const CHUNK_LOGITS: usize = 1 << 27;

/// Columns of a chunk of the vocabulary are a multiple of this, for the matrix products' sake.
const COLUMN_MULTIPLE: usize = 256;

/// Vectors of a row of logits that a unit turns into gradients, at most.
const VECTORS_PER_UNIT: u32 = 16;

/// Log-sum-exp and entropy of each row of a chunk, and the log-probabilities of its occurrences;
/// one cube per row.
#[cube(launch_unchecked, address_type = "dynamic")]
fn softmax_kernel<I: Int, N: Size>(
    logits: &[Vector<f32, N>],
    targets: &[I],
    starts: &[u32],
    log_probs: &mut [f32],
    log_sum_exps: &mut [f32],
    entropies: &mut [f32],
    first_row: usize,
    rows: usize,
    width: usize,
    stride: usize,
    #[comptime] entropy: bool,
    #[comptime] groups: RowGroups,
    #[define(I)] _dtype: ElemType,
) {
    if CUBE_POS >= rows {
        terminate!();
    }
    let units = comptime!(groups.units as usize);
    let base = CUBE_POS * stride;

    // Of the unit's logits x: the largest m, the sum of e^(x - m), and that of (x - m) e^(x - m).
    // The start is finite, so that no difference is not a number.
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
    let row = first_row + CUBE_POS;
    let mut row_entropy = 0.0f32;
    if comptime!(entropy) {
        // A unit without logits must not bring 0 * inf.
        let mut part = 0.0f32;
        if sum > 0.0f32 {
            part = scale * (weighted + shift * sum);
        }
        row_entropy = log_sum - row_sum(part, groups) / row_total;
    }
    if UNIT_POS == 0 {
        log_sum_exps[row] = log_sum_exp;
    }

    let mut occurrence = starts[row] as usize + UNIT_POS as usize;
    while occurrence < starts[row + 1] as usize {
        let target = usize::cast_from(targets[occurrence]);
        // What is not in the vocabulary must not pass for a probability; not all runtimes have NaN.
        let mut log_prob = f32::new(-3.0e38);
        if target < width * N::value() {
            let x = logits[base + target / N::value()];
            log_prob = x.extract_dynamic(target % N::value()) - log_sum_exp;
        }
        log_probs[occurrence] = log_prob;
        if comptime!(entropy) {
            entropies[occurrence] = row_entropy;
        }
        occurrence += units;
    }
}

/// Logits of a chunk of the vocabulary -> their gradient: the sum over the row's occurrences of
/// `grad * (onehot(target) - p) - grad_entropy * p * (ln p + H)`, the second if `entropy`. A cube
/// has a block of columns of one row. With `in_place`, `output` is `logits`.
#[cube(launch_unchecked, address_type = "dynamic")]
fn gradient_kernel<O: Float, I: Int, N: Size>(
    logits: &[Vector<f32, N>],
    targets: &[I],
    starts: &[u32],
    log_sum_exps: &[f32],
    entropies: &[f32],
    grads: &[f32],
    entropy_grads: &[f32],
    output: &mut [Vector<O, N>],
    rows: usize,
    width: usize,
    stride: usize,
    output_stride: usize,
    first_token: usize,
    blocks: usize,
    #[comptime] entropy: bool,
    #[comptime] in_place: bool,
    #[comptime] groups: RowGroups,
    #[define(O, I)] _dtypes: [ElemType; 2],
) {
    let row = CUBE_POS / blocks;
    if row >= rows {
        terminate!();
    }
    let units = comptime!(groups.units as usize);
    let block_width = comptime!((groups.units * VECTORS_PER_UNIT) as usize);
    let first_column = CUBE_POS % blocks * block_width;
    let mut end_column = first_column + block_width;
    if end_column > width {
        end_column = width;
    }
    let base = row * stride;
    let output_base = row * output_stride;
    let start = starts[row] as usize;
    let end = starts[row + 1] as usize;

    let mut part = 0.0f32;
    let mut occurrence = start + UNIT_POS as usize;
    while occurrence < end {
        part += grads[occurrence];
        occurrence += units;
    }
    let total = row_sum(part, groups);
    let log_sum_exp = log_sum_exps[row];
    let mut entropy_grad = 0.0f32;
    let mut row_entropy = 0.0f32;
    if comptime!(entropy) {
        let mut entropy_part = 0.0f32;
        let mut occurrence = start + UNIT_POS as usize;
        while occurrence < end {
            entropy_part += entropy_grads[occurrence];
            occurrence += units;
        }
        entropy_grad = row_sum(entropy_part, groups);
        row_entropy = entropies[start];
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

    // The first occurrence with a target in a vector adds all of those in that vector.
    occurrence = start + UNIT_POS as usize;
    while occurrence < end {
        let target = usize::cast_from(targets[occurrence]);
        // Below the block if it wraps: then it is past the end, too.
        let in_block = target >= first_token + first_column * N::value()
            && target < first_token + end_column * N::value();
        if in_block {
            let column = (target - first_token) / N::value();
            let mut is_first = true;
            for other in start..occurrence {
                let other_target = usize::cast_from(targets[other]);
                if other_target >= first_token
                    && (other_target - first_token) / N::value() == column
                {
                    is_first = false;
                }
            }
            if is_first {
                let mut value = if comptime!(in_place) {
                    Vector::<f32, N>::cast_from(output[output_base + column])
                } else {
                    let log_p = logits[base + column] - Vector::new(log_sum_exp);
                    off_target::<N>(log_p, total, entropy_grad, row_entropy, entropy)
                };
                for other in occurrence..end {
                    let other_target = usize::cast_from(targets[other]);
                    #[unroll]
                    for i in 0..N::value() {
                        if other_target == first_token + column * N::value() + i {
                            value.insert(i, value.extract(i) + grads[other]);
                        }
                    }
                }
                output[output_base + column] = Vector::cast_from(value);
            }
        }
        occurrence += units;
    }
}

/// The gradient of a logit apart from what its being a target adds.
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

/// Whether these tensors and this plan have kernels.
pub(crate) fn check(
    hidden: &CubeTensor,
    head_weight: &CubeTensor,
    plan: &LmHeadPlan,
) -> Result<(), Unavailable> {
    let product = plan.product_dtype(hidden.dtype, head_weight.dtype);
    match has_kernels(&[hidden, head_weight]) && product != FloatDType::F64 {
        true => Ok(()),
        false => Err(Unavailable(format!(
            "{:?} states, {:?} head and products in {product:?}; f32, f16 or bf16 are needed",
            hidden.dtype, head_weight.dtype
        ))),
    }
}

/// See [`crate::TreeNnOps::lm_head_log_probs`].
pub(crate) fn forward(
    hidden: CubeTensor,
    head_weight: CubeTensor,
    targets: IntTensor<CubeBackend>,
    plan: &LmHeadPlan,
    entropy: EntropyOutput,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let entropy = entropy != EntropyOutput::None;
    let head = Head::new(hidden, head_weight, targets, plan);
    let [vocab, _] = head.shape();
    let occurrences = plan.occurrences();
    let log_probs = empty(&head.weight, [occurrences], DType::F32);
    let log_sum_exps = empty(&head.weight, [plan.projected_rows()], DType::F32);
    let entropies = match entropy {
        true => empty(&head.weight, [occurrences], DType::F32),
        false => {
            CubeBackend::float_zeros([occurrences].into(), &head.weight.device, FloatDType::F32)
        }
    };
    let client = head.weight.client.clone();
    let groups = cube_per_row(&head.weight);
    for chunk in plan.chunks((head.chunk_logits(plan) / vocab).max(1)) {
        let rows = chunk.slots.len();
        let states = slice_rows(&head.states, chunk.slots.clone());
        let logits = product(states, head.transposed(0..vocab), DType::F32);
        let vector = logits_vector(&logits);
        let stride = logits.meta.strides()[0];
        let (count, dim) = cubes(&client, rows, groups.units);
        // SAFETY: shapes as read from the tensors; targets are compared with the vocabulary.
        unsafe {
            softmax_kernel::launch_unchecked(
                &client,
                count,
                dim,
                address_type(&[&logits, &head.targets]),
                vector,
                logits.clone().into_buffer_arg(),
                head.targets.clone().into_buffer_arg(),
                head.starts.arg(),
                log_probs.clone().into_buffer_arg(),
                log_sum_exps.clone().into_buffer_arg(),
                entropies.clone().into_buffer_arg(),
                chunk.slots.start,
                rows,
                vocab / vector,
                stride / vector,
                entropy,
                groups,
                elem(head.targets.dtype),
            );
        }
    }
    (log_probs, log_sum_exps, entropies)
}

/// See [`crate::TreeNnOps::lm_head_log_probs_backward`].
#[allow(clippy::too_many_arguments)]
pub(crate) fn backward(
    hidden: CubeTensor,
    head_weight: CubeTensor,
    targets: IntTensor<CubeBackend>,
    log_sum_exps: CubeTensor,
    entropies: CubeTensor,
    grad: CubeTensor,
    grad_entropy: CubeTensor,
    plan: &LmHeadPlan,
    gradients: HeadGradients,
) -> (CubeTensor, CubeTensor) {
    let [log_sum_exps, entropies, grad, grad_entropy] =
        contiguous([log_sum_exps, entropies, grad, grad_entropy]);
    let of = OccurrenceGradients {
        log_sum_exps,
        entropies,
        grad,
        grad_entropy,
        entropy: gradients.entropy,
    };
    let (hidden_dtype, head_dtype) = (hidden.dtype, head_weight.dtype);
    let head = Head::new(hidden, head_weight, targets, plan);
    let [vocab, width] = head.shape();
    let rows = plan.projected_rows();
    let mut grad_states: Option<CubeTensor> = None;
    let mut grad_head: Option<CubeTensor> = None;
    let columns = head.chunk_logits(plan) / rows;
    let columns = match columns > COLUMN_MULTIPLE {
        true => columns / COLUMN_MULTIPLE * COLUMN_MULTIPLE,
        false => columns.max(1),
    };
    for first in (0..vocab).step_by(columns) {
        let tokens = first..vocab.min(first + columns);
        let grad_logits = head.grad_logits(&of, tokens.clone());
        let rows = slice_rows(&head.weight, tokens.clone());
        let part = product(grad_logits.clone(), rows, DType::F32);
        grad_states = Some(match grad_states {
            Some(sum) => CubeBackend::float_add(sum, part),
            None => part,
        });
        if gradients.head {
            let grad_logits = CubeBackend::float_transpose(grad_logits);
            let part = product(grad_logits, head.states.clone(), head_dtype);
            grad_head = Some(match columns >= vocab {
                true => part,
                false => {
                    let whole = grad_head
                        .unwrap_or_else(|| empty(&head.weight, [vocab, width], head_dtype));
                    CubeBackend::float_slice_assign(whole, &[Slice::from(tokens)], part)
                }
            });
        }
    }
    let grad_states = grad_states.expect("a head has at least one token");
    let grad_hidden = gather_rows::kernel::backward(grad_states, plan.gather(), hidden_dtype);
    let grad_head = grad_head.unwrap_or_else(|| {
        CubeBackend::float_zeros([1, 1].into(), &head.weight.device, head_dtype.into())
    });
    (grad_hidden, grad_head)
}

/// What the gradient of the logits is made of.
struct OccurrenceGradients {
    /// `[projected rows]`
    log_sum_exps: CubeTensor,
    /// `[n]`, read if `entropy`.
    entropies: CubeTensor,
    /// `[n]`
    grad: CubeTensor,
    /// `[n]`, read if `entropy`.
    grad_entropy: CubeTensor,
    entropy: bool,
}

/// What both directions start from.
struct Head<'a> {
    /// Hidden states of the projected rows, in the dtype of the products.
    states: CubeTensor,
    /// In the dtype of the products.
    weight: CubeTensor,
    targets: CubeTensor,
    starts: DeviceList,
    plan: &'a LmHeadPlan,
}

impl<'a> Head<'a> {
    fn new(
        hidden: CubeTensor,
        weight: CubeTensor,
        targets: CubeTensor,
        plan: &'a LmHeadPlan,
    ) -> Self {
        let dtype = plan.product_dtype(hidden.dtype, weight.dtype);
        let starts = plan.device_starts.get(&hidden, |client| {
            DeviceList::new(client, &plan.occurrence_starts())
        });
        let states = gather_rows::kernel::forward(hidden, plan.gather());
        let [weight, targets] = contiguous([weight, targets]);
        Self {
            states: CubeBackend::float_cast(states, dtype),
            weight: CubeBackend::float_cast(weight, dtype),
            targets,
            starts,
            plan,
        }
    }

    /// `[vocab, hidden size]`
    fn shape(&self) -> [usize; 2] {
        [self.weight.meta.shape()[0], self.weight.meta.shape()[1]]
    }

    /// How many logits may be alive at once.
    fn chunk_logits(&self, plan: &LmHeadPlan) -> usize {
        let [vocab, _] = self.shape();
        let largest = self.weight.client.properties().memory.max_page_size / 4;
        let most = CHUNK_LOGITS.min(usize::try_from(largest).unwrap_or(usize::MAX));
        plan.chunk_rows().map_or(most, |rows| rows * vocab)
    }

    /// `[hidden size, tokens]`
    fn transposed(&self, tokens: std::ops::Range<usize>) -> CubeTensor {
        CubeBackend::float_transpose(slice_rows(&self.weight, tokens))
    }

    /// The gradient of the logits of some tokens, `[projected rows, tokens]`, in the dtype of the
    /// products.
    fn grad_logits(&self, of: &OccurrenceGradients, tokens: std::ops::Range<usize>) -> CubeTensor {
        let rows = self.plan.projected_rows();
        let client = self.weight.client.clone();
        let logits = product(
            self.states.clone(),
            self.transposed(tokens.clone()),
            DType::F32,
        );
        let dtype = self.weight.dtype;
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
        // SAFETY: shapes as read from the tensors; targets outside of `tokens` store nothing.
        unsafe {
            gradient_kernel::launch_unchecked(
                &client,
                count,
                dim,
                address_type(&[&logits, &output, &self.targets]),
                vector,
                logits.clone().into_buffer_arg(),
                self.targets.clone().into_buffer_arg(),
                self.starts.arg(),
                of.log_sum_exps.clone().into_buffer_arg(),
                of.entropies.clone().into_buffer_arg(),
                of.grad.clone().into_buffer_arg(),
                of.grad_entropy.clone().into_buffer_arg(),
                match in_place {
                    true => output.as_tensor_alias(0).into_buffer_arg(),
                    false => output.clone().into_buffer_arg(),
                },
                rows,
                width,
                stride / vector,
                output_stride / vector,
                tokens.start,
                blocks,
                of.entropy,
                in_place,
                groups,
                [elem(dtype), elem(self.targets.dtype)],
            );
        }
        output
    }
}

/// Burn's product, with sums and result in `dtype` whatever the factors' dtype.
fn product(lhs: CubeTensor, rhs: CubeTensor, dtype: DType) -> CubeTensor {
    probe(&lhs);
    probe(&rhs);
    let product = matmul(lhs, rhs, None, MatmulStrategy::default(), dtype)
        .unwrap_or_else(|error| panic!("matrix product of the language-model head: {error:?}"));
    // The largest tensor of a step. Chunks write parts of one result, which clears the mark of a
    // chunk that failed.
    probe(&product);
    product
}

fn slice_rows(tensor: &CubeTensor, rows: std::ops::Range<usize>) -> FloatTensor<CubeBackend> {
    CubeBackend::float_slice(tensor.clone(), &[Slice::from(rows)])
}

/// Logits may have space between rows.
fn logits_vector(logits: &CubeTensor) -> usize {
    let size = |width| vector_size(&logits.client, &[DType::F32], width);
    size(logits.meta.shape()[1]).min(size(logits.meta.strides()[0]))
}

fn cube_per_row(near: &CubeTensor) -> RowGroups {
    let units = units_per_cube(&near.client);
    RowGroups {
        units,
        lanes: units,
        plane: plane_width(&near.client).min(units),
    }
}
