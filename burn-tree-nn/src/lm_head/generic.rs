//! Implementation from Burn's primitives, for every backend.

use burn::backend::{
    Backend, TensorMetadata,
    tensor::{Device, FloatTensor, IndexingUpdateOp, IntTensor},
};
use burn::tensor::{DType, FloatDType, IntDType, Shape, Slice};

use super::options::EntropyOutput;
use super::plan::{HeadGradients, LmHeadChunk, LmHeadPlan};
use super::tensors::{LmHeadInputs, LmHeadOutputGradients};
use crate::gather_rows;
use burn_tree_kit::dtype::at_least_f32;
use burn_tree_kit::primitive::int_tensor;

/// Default number of logits in a chunk: 64 MiB in f32.
const CHUNK_LOGITS: usize = 1 << 24;

/// Minimum number of rows in a default chunk: with fewer, the sum of the head's gradient would cost
/// as much as its computation.
const MIN_CHUNK_ROWS: usize = 256;

/// The chunks of a plan, with a default number of rows if the caller has set none.
pub(crate) fn chunks(plan: &LmHeadPlan, vocab: usize) -> Vec<LmHeadChunk> {
    // Indices of logits must fit into 32 bits.
    let most = (i32::MAX as usize / vocab.max(1)).max(1);
    plan.chunks((CHUNK_LOGITS / vocab.max(1)).max(MIN_CHUNK_ROWS).min(most))
}

/// See [`crate::TreeNnOps::lm_head_log_probs`].
pub(crate) fn forward<B: Backend>(
    inputs: LmHeadInputs<B>,
    plan: &LmHeadPlan,
    entropy: EntropyOutput,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let LmHeadInputs {
        hidden,
        head_weight,
        targets,
    } = inputs;
    let entropy = entropy != EntropyOutput::None;
    let head = Head::<B>::new(&hidden, head_weight, plan);
    let device = hidden.device();
    let mut log_probs = Vec::new();
    let mut log_sum_exps = Vec::new();
    let mut entropies = Vec::new();
    for chunk in &chunks(plan, head.vocab) {
        let (_, logits) = head.logits(&hidden, plan, chunk);
        let max = B::float_max_dim(logits.clone(), 1);
        let shifted = B::float_sub(logits.clone(), max.clone());
        let exp = B::float_exp(shifted.clone());
        let sum = B::float_sum_dim(exp.clone(), 1);
        let log_sum = B::float_log(sum.clone());
        let log_sum_exp = flatten::<B>(B::float_add(log_sum.clone(), max));

        let slots = chunk_slots::<B>(plan, chunk, &device);
        let picked = B::float_select(
            flatten::<B>(logits),
            0,
            flat_targets::<B>(&targets, slots.clone(), chunk, head.vocab),
        );
        let denominators = B::float_select(log_sum_exp.clone(), 0, slots.clone());
        log_probs.push(B::float_sub(picked, denominators));
        log_sum_exps.push(log_sum_exp);
        if entropy {
            // H = log sum_v e^{x_v} - sum_v p_v x_v, with x shifted by the maximum.
            let mean = B::float_div(B::float_sum_dim(B::float_mul(exp, shifted), 1), sum);
            let rows = flatten::<B>(B::float_sub(log_sum, mean));
            entropies.push(B::float_select(rows, 0, slots));
        }
    }
    let log_probs = B::float_cat(log_probs, 0);
    let entropy = match entropy {
        true => B::float_cat(entropies, 0),
        false => B::float_zeros(log_probs.shape(), &device, log_probs.dtype().into()),
    };
    (log_probs, B::float_cat(log_sum_exps, 0), entropy)
}

/// See [`crate::TreeNnOps::lm_head_log_probs_backward`].
pub(crate) fn backward<B: Backend>(
    inputs: LmHeadInputs<B>,
    outputs: LmHeadOutputGradients<B>,
    plan: &LmHeadPlan,
    gradients: HeadGradients,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let LmHeadInputs {
        hidden,
        head_weight,
        targets,
    } = inputs;
    let LmHeadOutputGradients {
        log_sum_exp,
        entropy,
        grad,
        grad_entropy,
    } = outputs;
    let device = hidden.device();
    let (hidden_dtype, head_dtype) = (hidden.dtype(), head_weight.dtype());
    let head_shape = head_weight.shape();
    let head = Head::<B>::new(&hidden, head_weight, plan);
    let accumulation = at_least_f32(head.product.into());
    let mut grad_rows = Vec::new();
    let grad_head_shape = if gradients.head {
        head_shape
    } else {
        Shape::new([1, 1])
    };
    let mut grad_head = B::float_zeros(grad_head_shape, &device, accumulation);
    for chunk in &chunks(plan, head.vocab) {
        let (states, logits) = head.logits(&hidden, plan, chunk);
        let rows = chunk.slots.len();
        let log_sum_exp = B::float_slice(log_sum_exp.clone(), &[slice(&chunk.slots)]);
        let log_sum_exp = B::float_reshape(log_sum_exp, Shape::new([rows, 1]));
        let row_log_probs = B::float_sub(logits, log_sum_exp);
        let probabilities = B::float_exp(row_log_probs.clone());

        // d log p(target) / d logits = onehot(target) - p, summed over the row's occurrences.
        let slots = chunk_slots::<B>(plan, chunk, &device);
        let grad = B::float_slice(grad.clone(), &[slice(&chunk.occurrences)]);
        let grad = B::float_cast(grad, accumulation);
        let row_sums = |values: FloatTensor<B>| {
            let zeros = B::float_zeros(Shape::new([rows]), &device, accumulation);
            let slots = slots.clone();
            let sums = B::float_select_assign(zeros, 0, slots, values, IndexingUpdateOp::Add);
            B::float_reshape(sums, Shape::new([rows, 1]))
        };
        let mut factors = row_sums(grad.clone());
        if gradients.entropy {
            // d H / d logits = -p (ln p + H)
            let grad_entropy = B::float_slice(grad_entropy.clone(), &[slice(&chunk.occurrences)]);
            let grad_entropy = row_sums(B::float_cast(grad_entropy, accumulation));
            let firsts = &plan.occurrence_starts()[chunk.slots.clone()];
            let row_entropy = B::float_select(entropy.clone(), 0, int_tensor::<B>(firsts, &device));
            let row_entropy = B::float_reshape(row_entropy, Shape::new([rows, 1]));
            let excess = B::float_add(row_log_probs, row_entropy);
            factors = B::float_add(B::float_mul(excess, grad_entropy), factors);
        }
        let grad_logits = B::float_select_assign(
            flatten::<B>(B::float_neg(B::float_mul(probabilities, factors))),
            0,
            flat_targets::<B>(&targets, slots.clone(), chunk, head.vocab),
            grad,
            IndexingUpdateOp::Add,
        );
        let grad_logits = B::float_reshape(grad_logits, Shape::new([rows, head.vocab]));
        let grad_logits = B::float_cast(grad_logits, head.product);

        grad_rows.push(B::float_matmul(grad_logits.clone(), head.weight.clone()));
        if gradients.head {
            let part = B::float_matmul(B::float_transpose(grad_logits), states);
            grad_head = B::float_add(grad_head, B::float_cast(part, accumulation));
        }
    }
    let grad_rows = B::float_cat(grad_rows, 0);
    let grad_hidden = gather_rows::generic::backward::<B>(grad_rows, plan.gather());
    (
        B::float_cast(grad_hidden, hidden_dtype.into()),
        B::float_cast(grad_head, head_dtype.into()),
    )
}

/// The head in the dtype of the products.
struct Head<B: Backend> {
    weight: FloatTensor<B>,
    vocab: usize,
    product: FloatDType,
}

impl<B: Backend> Head<B> {
    fn new(hidden: &FloatTensor<B>, weight: FloatTensor<B>, plan: &LmHeadPlan) -> Self {
        let product = plan.product_dtype(hidden.dtype(), weight.dtype());
        Self {
            vocab: weight.shape()[0],
            weight: B::float_cast(weight, product),
            product,
        }
    }

    /// The states `[rows, H]` of a chunk and their logits `[rows, V]` in at least f32.
    fn logits(
        &self,
        hidden: &FloatTensor<B>,
        plan: &LmHeadPlan,
        chunk: &LmHeadChunk,
    ) -> (FloatTensor<B>, FloatTensor<B>) {
        let rows = int_tensor::<B>(&plan.rows()[chunk.slots.clone()], &hidden.device());
        let states = B::float_cast(B::float_select(hidden.clone(), 0, rows), self.product);
        let logits = B::float_matmul(states.clone(), B::float_transpose(self.weight.clone()));
        let logits = B::float_cast(logits, at_least_f32(self.product.into()));
        (states, logits)
    }
}

/// For each occurrence of the chunk, its slot within the chunk.
fn chunk_slots<B: Backend>(
    plan: &LmHeadPlan,
    chunk: &LmHeadChunk,
    device: &Device<B>,
) -> IntTensor<B> {
    let slots: Vec<u32> = plan.slots()[chunk.occurrences.clone()]
        .iter()
        .map(|&slot| slot - chunk.slots.start as u32)
        .collect();
    int_tensor::<B>(&slots, device)
}

/// `slot * vocab + target`: the index of each occurrence's logit in the chunk's flattened logits.
fn flat_targets<B: Backend>(
    targets: &IntTensor<B>,
    slots: IntTensor<B>,
    chunk: &LmHeadChunk,
    vocab: usize,
) -> IntTensor<B> {
    let targets = B::int_slice(targets.clone(), &[slice(&chunk.occurrences)]);
    // LibTorch's integers have 64 bits, and Burn cannot cast them to another width there.
    let dtype = match targets.dtype() {
        DType::I64 => IntDType::I64,
        _ => IntDType::I32,
    };
    let slots = B::int_mul_scalar(B::int_cast(slots, dtype), (vocab as i64).into());
    B::int_add(slots, B::int_cast(targets, dtype))
}

fn flatten<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let elements = tensor.shape().num_elements();
    B::float_reshape(tensor, Shape::new([elements]))
}

fn slice(range: &std::ops::Range<usize>) -> Slice {
    Slice::from(range.clone())
}
