//! Implementation for CPU tensors: Flex's matrix products, and vectorised passes over a chunk of
//! logits.

mod softmax;

use burn::backend::{Flex, TensorMetadata, ops::FloatTensorOps};
use burn::tensor::DType;
use burn_flex::FlexTensor;
use burn_tree_kit::cpu::Number;
use burn_tree_kit::primitive::int_tensor;

use self::softmax::{EntropyGrad, Pick};
use super::generic::chunks;
use super::options::EntropyOutput;
use super::plan::{HeadGradients, LmHeadChunk, LmHeadPlan};
use super::tensors::{LmHeadInputs, LmHeadOutputGradients};
use crate::native::{common_dtype, tensor};

/// The dtype of all tensors and of the products, if it is the same.
pub(crate) fn dtype(plan: &LmHeadPlan, tensors: &[&FlexTensor]) -> Option<DType> {
    common_dtype(tensors).filter(|&dtype| plan.product_dtype(dtype, dtype) == dtype.into())
}

/// See [`crate::TreeNnOps::lm_head_log_probs`]; states, head and products have elements of type
/// `T`.
pub(crate) fn forward<T: Number>(
    inputs: LmHeadInputs<Flex>,
    plan: &LmHeadPlan,
    entropy: EntropyOutput,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let LmHeadInputs {
        hidden,
        head_weight,
        targets,
    } = inputs;
    let entropy = entropy != EntropyOutput::None;
    let vocab = head_weight.shape()[0];
    let targets = host_targets(targets, vocab);
    let mut log_probs = Vec::with_capacity(plan.occurrences());
    let mut log_sum_exps = Vec::with_capacity(plan.projected_rows());
    let mut entropies = Vec::with_capacity(plan.occurrences());
    for chunk in &chunks(plan, vocab) {
        let (_, mut logits) = logits(&hidden, &head_weight, plan, chunk);
        let picks = picks::<T>(plan, chunk, &targets, None);
        let rows = softmax::statistics(logits.storage_mut(), vocab, &picks, entropy);
        for row in rows {
            log_sum_exps.push(row.log_sum_exp);
            entropies.extend(row.log_probs.iter().map(|_| row.entropy));
            log_probs.extend(row.log_probs);
        }
    }
    let vector = |values: Vec<T>| {
        let length = values.len();
        tensor(values, [length].into())
    };
    (vector(log_probs), vector(log_sum_exps), vector(entropies))
}

/// See [`crate::TreeNnOps::lm_head_log_probs_backward`]; all float tensors and products have
/// elements of type `T`.
pub(crate) fn backward<T: Number>(
    inputs: LmHeadInputs<Flex>,
    outputs: LmHeadOutputGradients<Flex>,
    plan: &LmHeadPlan,
    gradients: HeadGradients,
) -> (FlexTensor, FlexTensor) {
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
    let [vocab, width] = head_weight.shape().dims();
    let targets = host_targets(targets, vocab);
    let log_sum_exp = log_sum_exp.to_contiguous();
    let grad = grad.to_contiguous();
    let entropies = gradients.entropy.then(|| {
        entropy_grads::<T>(
            &entropy.to_contiguous(),
            &grad_entropy.to_contiguous(),
            plan,
        )
    });
    let mut grad_hidden = vec![T::ZERO; hidden.shape().num_elements()];
    let mut grad_head: Option<FlexTensor> = None;
    for chunk in &chunks(plan, vocab) {
        let (states, mut logits) = logits(&hidden, &head_weight, plan, chunk);
        let picks = picks(plan, chunk, &targets, Some(grad.storage::<T>()));
        softmax::gradients(
            logits.storage_mut(),
            vocab,
            &log_sum_exp.storage::<T>()[chunk.slots.clone()],
            &picks,
            entropies.as_ref().map(|of| &of[chunk.slots.clone()]),
        );
        let rows = Flex::float_matmul(logits.clone(), head_weight.clone());
        for (row, &place) in rows
            .storage::<T>()
            .chunks_exact(width)
            .zip(&plan.rows()[chunk.slots.clone()])
        {
            grad_hidden[place as usize * width..][..width].copy_from_slice(row);
        }
        if gradients.head {
            let part = Flex::float_matmul(Flex::float_transpose(logits), states);
            grad_head = Some(match grad_head {
                Some(sum) => Flex::float_add(sum, part),
                None => part,
            });
        }
    }
    let grad_head = grad_head.unwrap_or_else(|| match gradients.head {
        true => FlexTensor::zeros(head_weight.shape(), T::dtype()),
        false => FlexTensor::zeros([1, 1].into(), T::dtype()),
    });
    (tensor(grad_hidden, hidden.shape()), grad_head)
}

/// Entropy of each distinct row, and the sum of its gradients.
fn entropy_grads<T: Number>(
    entropy: &FlexTensor,
    grad: &FlexTensor,
    plan: &LmHeadPlan,
) -> Vec<EntropyGrad<T>> {
    let none = EntropyGrad {
        entropy: T::ZERO,
        grad: T::ZERO,
    };
    let mut rows = vec![none; plan.projected_rows()];
    let occurrences = entropy.storage::<T>().iter().zip(grad.storage::<T>());
    for (&slot, (&entropy, &grad)) in plan.slots().iter().zip(occurrences) {
        let row = &mut rows[slot as usize];
        row.entropy = entropy;
        row.grad += grad;
    }
    rows
}

/// The states of a chunk's rows and their logits, whose memory no other tensor shares.
fn logits(
    hidden: &FlexTensor,
    head_weight: &FlexTensor,
    plan: &LmHeadPlan,
    chunk: &LmHeadChunk,
) -> (FlexTensor, FlexTensor) {
    let rows = int_tensor::<Flex>(&plan.rows()[chunk.slots.clone()], &Default::default());
    let states = Flex::float_select(hidden.clone(), 0, rows);
    let logits = Flex::float_matmul(states.clone(), Flex::float_transpose(head_weight.clone()));
    (states, logits)
}

/// # Panics
///
/// If a target is not in the vocabulary.
fn host_targets(targets: FlexTensor, vocab: usize) -> Vec<usize> {
    targets
        .into_data()
        .iter::<i64>()
        .enumerate()
        .map(|(occurrence, target)| {
            usize::try_from(target)
                .ok()
                .filter(|&target| target < vocab)
                .unwrap_or_else(|| {
                    panic!("target {target} of occurrence {occurrence} is outside the vocabulary of {vocab}")
                })
        })
        .collect()
}

/// The predictions of each row of a chunk, with their gradients if given.
fn picks<T: Number>(
    plan: &LmHeadPlan,
    chunk: &LmHeadChunk,
    targets: &[usize],
    grads: Option<&[T]>,
) -> Vec<Vec<Pick<T>>> {
    let mut picks = vec![Vec::new(); chunk.slots.len()];
    for occurrence in chunk.occurrences.clone() {
        let row = plan.slots()[occurrence] as usize - chunk.slots.start;
        picks[row].push(Pick {
            target: targets[occurrence],
            grad: grads.map_or(T::ZERO, |grads| grads[occurrence]),
        });
    }
    picks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "target 7 of occurrence 1 is outside the vocabulary of 7")]
    fn a_target_outside_the_vocabulary_is_named() {
        host_targets(int_tensor::<Flex>(&[6, 7], &Default::default()), 7);
    }
}
