//! Implementation on CubeCL runtimes: Burn's matrix products, with one kernel per direction between
//! them that reads each chunk of logits once.
//!
//! The forward pass processes one chunk of rows at a time. The backward pass processes one chunk of
//! the vocabulary at a time, for all rows: each chunk's part of the head's gradient is then
//! complete, and only the gradient of the states, which is smaller, is summed over chunks (in f32).

mod gradient;
mod head;
mod softmax;

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, FloatDType, Slice};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_tree_kit::cube::{DeviceCache, DeviceList, contiguous, empty, has_kernels};
use burn_tree_kit::implementation::Unavailable;

use self::gradient::OccurrenceGradients;
use self::head::{Head, product, slice_rows};
use self::softmax::Statistics;
use super::options::EntropyOutput;
use super::plan::{HeadGradients, LmHeadPlan};
use super::tensors::{LmHeadInputs, LmHeadOutputGradients};
use crate::gather_rows;
use crate::product::Form;

/// The first occurrence of each projected row.
pub(crate) type StartsCache = DeviceCache<DeviceList>;

/// The number of columns of a chunk of the vocabulary is a multiple of this, which makes matrix
/// products faster.
const COLUMN_MULTIPLE: usize = 256;

/// Refuses dtypes that the kernels do not support.
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
    inputs: LmHeadInputs<CubeBackend>,
    plan: &LmHeadPlan,
    entropy: EntropyOutput,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let entropy = entropy != EntropyOutput::None;
    let head = Head::new(inputs, plan);
    let [vocab, _] = head.shape();
    let occurrences = plan.occurrences();
    let statistics = Statistics {
        log_probs: empty(&head.weight, [occurrences], DType::F32),
        log_sum_exps: empty(&head.weight, [plan.projected_rows()], DType::F32),
        entropies: match entropy {
            true => empty(&head.weight, [occurrences], DType::F32),
            false => {
                CubeBackend::float_zeros([occurrences].into(), &head.weight.device, FloatDType::F32)
            }
        },
        entropy,
    };
    for chunk in plan.chunks((head.chunk_logits() / vocab).max(1)) {
        let states = slice_rows(&head.states, chunk.slots.clone());
        let weight = head.weight.clone();
        let logits = product(Form::RightTransposed, states, weight, DType::F32);
        statistics.compute(&head, &logits, chunk.slots);
    }
    let Statistics {
        log_probs,
        log_sum_exps,
        entropies,
        ..
    } = statistics;
    (log_probs, log_sum_exps, entropies)
}

/// See [`crate::TreeNnOps::lm_head_log_probs_backward`].
pub(crate) fn backward(
    inputs: LmHeadInputs<CubeBackend>,
    outputs: LmHeadOutputGradients<CubeBackend>,
    plan: &LmHeadPlan,
    gradients: HeadGradients,
) -> (CubeTensor, CubeTensor) {
    let [log_sum_exps, entropies, grad, grad_entropy] = contiguous([
        outputs.log_sum_exp,
        outputs.entropy,
        outputs.grad,
        outputs.grad_entropy,
    ]);
    let of = OccurrenceGradients {
        log_sum_exps,
        entropies,
        grad,
        grad_entropy,
        entropy: gradients.entropy,
    };
    let (hidden_dtype, head_dtype) = (inputs.hidden.dtype, inputs.head_weight.dtype);
    let head = Head::new(inputs, plan);
    let [vocab, width] = head.shape();
    let rows = plan.projected_rows();
    let mut grad_states: Option<CubeTensor> = None;
    let mut grad_head: Option<CubeTensor> = None;
    let columns = head.chunk_logits() / rows;
    let columns = match columns > COLUMN_MULTIPLE {
        true => columns / COLUMN_MULTIPLE * COLUMN_MULTIPLE,
        false => columns.max(1),
    };
    for first in (0..vocab).step_by(columns) {
        let tokens = first..vocab.min(first + columns);
        let grad_logits = of.grad_logits(&head, tokens.clone());
        let rows = slice_rows(&head.weight, tokens.clone());
        let part = product(Form::Plain, grad_logits.clone(), rows, DType::F32);
        grad_states = Some(match grad_states {
            Some(sum) => CubeBackend::float_add(sum, part),
            None => part,
        });
        if gradients.head {
            let states = head.states.clone();
            let part = product(Form::LeftTransposed, grad_logits, states, head_dtype);
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
