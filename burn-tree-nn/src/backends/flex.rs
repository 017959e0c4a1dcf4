//! Flex: the implementations for CPU tensors in memory. f32 and f64 have their own; narrower and
//! mixed dtypes take the bodies from primitives.

use std::sync::Arc;

use burn::backend::{
    Flex, TensorMetadata,
    ops::FloatTensorOps,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};

use crate::lm_head::native::{EntropyGrad, Pick};
use crate::lm_head::{self, EntropyOutput, HeadGradients, LmHeadChunk, LmHeadPlan};
use crate::{TreeNnOps, rms_norm, swiglu};
use burn_tree_kit::cpu::Number;
use burn_tree_kit::primitive::int_tensor;

impl TreeNnOps for Flex {
    fn lm_head_log_probs(
        hidden: FloatTensor<Self>,
        head_weight: FloatTensor<Self>,
        targets: IntTensor<Self>,
        plan: Arc<LmHeadPlan>,
        entropy: EntropyOutput,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        match head_dtype(&plan, &[&hidden, &head_weight]) {
            Some(DType::F32) => head_forward::<f32>(&hidden, head_weight, targets, &plan, entropy),
            Some(DType::F64) => head_forward::<f64>(&hidden, head_weight, targets, &plan, entropy),
            _ => lm_head::generic::forward::<Self>(hidden, head_weight, targets, &plan, entropy),
        }
    }

    fn lm_head_log_probs_backward(
        hidden: FloatTensor<Self>,
        head_weight: FloatTensor<Self>,
        targets: IntTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        entropy: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        grad_entropy: FloatTensor<Self>,
        plan: Arc<LmHeadPlan>,
        gradients: HeadGradients,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let tensors = [
            &hidden,
            &head_weight,
            &log_sum_exp,
            &entropy,
            &grad,
            &grad_entropy,
        ];
        let dtype = head_dtype(&plan, &tensors);
        let backward = match dtype {
            Some(DType::F32) => head_backward::<f32>,
            Some(DType::F64) => head_backward::<f64>,
            _ => lm_head::generic::backward::<Self>,
        };
        backward(
            hidden,
            head_weight,
            targets,
            log_sum_exp,
            entropy,
            grad,
            grad_entropy,
            &plan,
            gradients,
        )
    }

    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
        zero_centered: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        fn run<T: Number>(
            x: FlexTensor,
            weight: FlexTensor,
            epsilon: f64,
            zero_centered: bool,
        ) -> (FlexTensor, FlexTensor) {
            let [x, weight] = [x, weight].map(|tensor| tensor.to_contiguous());
            let scale = rms_norm::native::scale::<T>(weight.storage(), zero_centered);
            let (y, inverse_rms) = rms_norm::native::forward(x.storage(), &scale, epsilon);
            let rows = inverse_rms.len();
            (tensor(y, x.shape()), tensor(inverse_rms, [rows, 1].into()))
        }
        match common_dtype(&[&x, &weight]) {
            Some(DType::F32) => run::<f32>(x, weight, epsilon, zero_centered),
            Some(DType::F64) => run::<f64>(x, weight, epsilon, zero_centered),
            _ => rms_norm::generic::forward::<Self>(x, weight, epsilon, zero_centered),
        }
    }

    fn rms_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        inverse_rms: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        zero_centered: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        fn run<T: Number>(
            inputs: [FlexTensor; 4],
            zero_centered: bool,
        ) -> (FlexTensor, FlexTensor) {
            let [x, weight, inverse_rms, grad] = inputs.map(|tensor| tensor.to_contiguous());
            let scale = rms_norm::native::scale::<T>(weight.storage(), zero_centered);
            let (grad_x, grad_weight) = rms_norm::native::backward(
                x.storage(),
                &scale,
                inverse_rms.storage(),
                grad.storage(),
            );
            (
                tensor(grad_x, x.shape()),
                tensor(grad_weight, weight.shape()),
            )
        }
        match common_dtype(&[&x, &weight, &inverse_rms, &grad]) {
            Some(DType::F32) => run::<f32>([x, weight, inverse_rms, grad], zero_centered),
            Some(DType::F64) => run::<f64>([x, weight, inverse_rms, grad], zero_centered),
            _ => rms_norm::generic::backward::<Self>(x, weight, inverse_rms, grad, zero_centered),
        }
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        fn run<T: Number>(gate: FlexTensor, up: FlexTensor) -> FlexTensor {
            let [gate, up] = [gate, up].map(|tensor| tensor.to_contiguous());
            let y = swiglu::native::forward::<T>(gate.storage(), up.storage());
            tensor(y, gate.shape())
        }
        match common_dtype(&[&gate, &up]) {
            Some(DType::F32) => run::<f32>(gate, up),
            Some(DType::F64) => run::<f64>(gate, up),
            _ => swiglu::generic::forward::<Self>(gate, up),
        }
    }

    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        fn run<T: Number>(inputs: [FlexTensor; 3]) -> (FlexTensor, FlexTensor) {
            let [gate, up, grad] = inputs.map(|tensor| tensor.to_contiguous());
            let (grad_gate, grad_up) =
                swiglu::native::backward::<T>(gate.storage(), up.storage(), grad.storage());
            (tensor(grad_gate, gate.shape()), tensor(grad_up, up.shape()))
        }
        match common_dtype(&[&gate, &up, &grad]) {
            Some(DType::F32) => run::<f32>([gate, up, grad]),
            Some(DType::F64) => run::<f64>([gate, up, grad]),
            _ => swiglu::generic::backward::<Self>(gate, up, grad),
        }
    }
}

/// The dtype of all tensors, if it is one.
fn common_dtype(tensors: &[&FlexTensor]) -> Option<DType> {
    let first = tensors.first()?.dtype();
    tensors
        .iter()
        .all(|tensor| tensor.dtype() == first)
        .then_some(first)
}

/// The dtype of all tensors, if it is one and that of the products.
fn head_dtype(plan: &LmHeadPlan, tensors: &[&FlexTensor]) -> Option<DType> {
    common_dtype(tensors).filter(|&dtype| plan.product_dtype(dtype, dtype) == dtype.into())
}

fn tensor<T: Number>(values: Vec<T>, shape: Shape) -> FlexTensor {
    FlexTensor::new(
        Bytes::from_elems(values),
        Layout::contiguous(shape),
        T::dtype(),
    )
}

fn head_forward<T: Number>(
    hidden: &FlexTensor,
    head_weight: FlexTensor,
    targets: FlexTensor,
    plan: &LmHeadPlan,
    entropy: EntropyOutput,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let entropy = entropy != EntropyOutput::None;
    let vocab = head_weight.shape()[0];
    let targets = host_targets(targets, vocab);
    let mut log_probs = Vec::with_capacity(plan.occurrences());
    let mut log_sum_exps = Vec::with_capacity(plan.projected_rows());
    let mut entropies = Vec::with_capacity(plan.occurrences());
    for chunk in &lm_head::generic::chunks(plan, vocab) {
        let (_, mut logits) = logits(hidden, &head_weight, plan, chunk);
        let picks = picks::<T>(plan, chunk, &targets, None);
        let rows = lm_head::native::forward(logits.storage_mut(), vocab, &picks, entropy);
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

#[allow(clippy::too_many_arguments)]
fn head_backward<T: Number>(
    hidden: FlexTensor,
    head_weight: FlexTensor,
    targets: FlexTensor,
    log_sum_exp: FlexTensor,
    entropy: FlexTensor,
    grad: FlexTensor,
    grad_entropy: FlexTensor,
    plan: &LmHeadPlan,
    gradients: HeadGradients,
) -> (FlexTensor, FlexTensor) {
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
    for chunk in &lm_head::generic::chunks(plan, vocab) {
        let (states, mut logits) = logits(&hidden, &head_weight, plan, chunk);
        let picks = picks(plan, chunk, &targets, Some(grad.storage::<T>()));
        lm_head::native::backward(
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

/// The states of a chunk's rows and their logits, which nobody else holds.
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
    use proptest::prelude::*;

    use super::*;

    /// Numbers between -3 and 3.
    fn numbers<const D: usize>(shape: [usize; D], seed: usize) -> FlexTensor {
        let values: Vec<f64> = (0..shape.iter().product())
            .map(|index: usize| ((index * 7919 + seed * 104_729) % 2003) as f64 / 333.7 - 3.0)
            .collect();
        tensor(values, shape.into())
    }

    fn assert_close(found: FlexTensor, expected: FlexTensor) {
        assert_eq!(found.shape(), expected.shape());
        assert_eq!(found.dtype(), expected.dtype());
        let (found, expected) = (found.to_contiguous(), expected.to_contiguous());
        for (found, expected) in found.storage::<f64>().iter().zip(expected.storage::<f64>()) {
            // Sums of at most 2,000 numbers of this size in another order.
            assert!(
                (found - expected).abs() < 1e-11,
                "{found} instead of {expected}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn norms_equal_the_primitives(
            rows in 1usize..40,
            size in 1usize..80,
            zero_centered: bool,
        ) {
            let x = numbers([rows, size], 1);
            let weight = numbers([size], 2);
            let grad = numbers([rows, size], 3);
            let (y, inverse_rms) = Flex::rms_norm(x.clone(), weight.clone(), 1e-6, zero_centered);
            let expected = rms_norm::generic::forward::<Flex>(
                x.clone(),
                weight.clone(),
                1e-6,
                zero_centered,
            );
            assert_close(y, expected.0);
            assert_close(inverse_rms.clone(), expected.1);
            let found = Flex::rms_norm_backward(
                x.clone(),
                weight.clone(),
                inverse_rms.clone(),
                grad.clone(),
                zero_centered,
            );
            let expected =
                rms_norm::generic::backward::<Flex>(x, weight, inverse_rms, grad, zero_centered);
            assert_close(found.0, expected.0);
            assert_close(found.1, expected.1);
        }

        #[test]
        fn activations_equal_the_primitives(rows in 1usize..9, size in 1usize..50) {
            // A transposed operand is not contiguous.
            let gate = Flex::float_transpose(numbers([size, rows], 1));
            let [up, grad] = [2, 3].map(|seed| numbers([rows, size], seed));
            assert_close(
                Flex::swiglu(gate.clone(), up.clone()),
                swiglu::generic::forward::<Flex>(gate.clone(), up.clone()),
            );
            let found = Flex::swiglu_backward(gate.clone(), up.clone(), grad.clone());
            let expected = swiglu::generic::backward::<Flex>(gate, up, grad);
            assert_close(found.0, expected.0);
            assert_close(found.1, expected.1);
        }

        #[test]
        fn log_probabilities_equal_the_primitives(
            mut rows in prop::collection::vec(0u32..12, 1..30),
            vocab in 1usize..90,
            chunk_rows in 1usize..14,
        ) {
            rows.sort_unstable();
            let count = rows.len();
            let targets: Vec<u32> = (0..count).map(|index| (index * 31 % vocab) as u32).collect();
            let targets = int_tensor::<Flex>(&targets, &Default::default());
            let plan = Arc::new(LmHeadPlan::new(&rows, 12, Some(chunk_rows), None).unwrap());
            let hidden = numbers([12, 5], 1);
            let head = numbers([vocab, 5], 2);
            let grad = numbers([count], 3);
            let inputs = || (hidden.clone(), head.clone(), targets.clone());
            let (h, w, t) = inputs();
            let found = Flex::lm_head_log_probs(h, w, t, plan.clone(), EntropyOutput::Value);
            let (h, w, t) = inputs();
            let expected = lm_head::generic::forward::<Flex>(h, w, t, &plan, EntropyOutput::Value);
            assert_close(found.0, expected.0);
            assert_close(found.1.clone(), expected.1.clone());
            assert_close(found.2, expected.2.clone());
            let of_entropy = numbers([count], 4);
            for (head, entropy) in [(true, true), (true, false), (false, true), (false, false)] {
                let gradients = HeadGradients { head, entropy };
                let (h, w, t) = inputs();
                let (sums, e) = (found.1.clone(), expected.2.clone());
                let (g, ge) = (grad.clone(), of_entropy.clone());
                let found = Flex::lm_head_log_probs_backward(
                    h, w, t, sums, e, g, ge, plan.clone(), gradients,
                );
                let (h, w, t) = inputs();
                let (sums, e) = (expected.1.clone(), expected.2.clone());
                let (g, ge) = (grad.clone(), of_entropy.clone());
                let expected = lm_head::generic::backward::<Flex>(
                    h, w, t, sums, e, g, ge, &plan, gradients,
                );
                assert_close(found.0, expected.0);
                assert_close(found.1, expected.1);
            }
        }
    }

    #[test]
    #[should_panic(expected = "target 7 of occurrence 1 is outside the vocabulary of 7")]
    fn a_target_outside_the_vocabulary_is_named() {
        host_targets(int_tensor::<Flex>(&[6, 7], &Default::default()), 7);
    }
}
