//! Flex: the native implementations take tensors that are all in f32 or all in f64; narrower and
//! mixed dtypes take the bodies from primitives.

use std::sync::Arc;

use burn::backend::{Flex, tensor::FloatTensor};
use burn::tensor::DType;

use crate::lm_head::{
    self, EntropyOutput, HeadGradients, LmHeadInputs, LmHeadOutputGradients, LmHeadPlan,
};
use crate::native::common_dtype;
use crate::ops::TreeNnOps;
use crate::rms_norm::{self, NormScale};
use crate::swiglu;

impl TreeNnOps for Flex {
    fn lm_head_log_probs(
        inputs: LmHeadInputs<Self>,
        plan: Arc<LmHeadPlan>,
        entropy: EntropyOutput,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let forward = match lm_head::native::dtype(&plan, &[&inputs.hidden, &inputs.head_weight]) {
            Some(DType::F32) => lm_head::native::forward::<f32>,
            Some(DType::F64) => lm_head::native::forward::<f64>,
            _ => lm_head::generic::forward::<Self>,
        };
        forward(inputs, &plan, entropy)
    }

    fn lm_head_log_probs_backward(
        inputs: LmHeadInputs<Self>,
        outputs: LmHeadOutputGradients<Self>,
        plan: Arc<LmHeadPlan>,
        gradients: HeadGradients,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let tensors = [
            &inputs.hidden,
            &inputs.head_weight,
            &outputs.log_sum_exp,
            &outputs.entropy,
            &outputs.grad,
            &outputs.grad_entropy,
        ];
        let backward = match lm_head::native::dtype(&plan, &tensors) {
            Some(DType::F32) => lm_head::native::backward::<f32>,
            Some(DType::F64) => lm_head::native::backward::<f64>,
            _ => lm_head::generic::backward::<Self>,
        };
        backward(inputs, outputs, &plan, gradients)
    }

    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
        scale: NormScale,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let forward = match common_dtype(&[&x, &weight]) {
            Some(DType::F32) => rms_norm::native::forward::<f32>,
            Some(DType::F64) => rms_norm::native::forward::<f64>,
            _ => rms_norm::generic::forward::<Self>,
        };
        forward(x, weight, epsilon, scale)
    }

    fn rms_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        inverse_rms: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        scale: NormScale,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let backward = match common_dtype(&[&x, &weight, &inverse_rms, &grad]) {
            Some(DType::F32) => rms_norm::native::backward::<f32>,
            Some(DType::F64) => rms_norm::native::backward::<f64>,
            _ => rms_norm::generic::backward::<Self>,
        };
        backward(x, weight, inverse_rms, grad, scale)
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let forward = match common_dtype(&[&gate, &up]) {
            Some(DType::F32) => swiglu::native::forward::<f32>,
            Some(DType::F64) => swiglu::native::forward::<f64>,
            _ => swiglu::generic::forward::<Self>,
        };
        forward(gate, up)
    }

    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let backward = match common_dtype(&[&gate, &up, &grad]) {
            Some(DType::F32) => swiglu::native::backward::<f32>,
            Some(DType::F64) => swiglu::native::backward::<f64>,
            _ => swiglu::generic::backward::<Self>,
        };
        backward(gate, up, grad)
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::{TensorMetadata, ops::FloatTensorOps};
    use burn_flex::FlexTensor;
    use burn_tree_kit::primitive::int_tensor;
    use proptest::prelude::*;

    use super::*;
    use crate::native::tensor;

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
            one_plus: bool,
        ) {
            let scale = match one_plus {
                true => NormScale::OnePlusWeight,
                false => NormScale::Weight,
            };
            let x = numbers([rows, size], 1);
            let weight = numbers([size], 2);
            let grad = numbers([rows, size], 3);
            let (y, inverse_rms) = Flex::rms_norm(x.clone(), weight.clone(), 1e-6, scale);
            let expected = rms_norm::generic::forward::<Flex>(
                x.clone(),
                weight.clone(),
                1e-6,
                scale,
            );
            assert_close(y, expected.0);
            assert_close(inverse_rms.clone(), expected.1);
            let found = Flex::rms_norm_backward(
                x.clone(),
                weight.clone(),
                inverse_rms.clone(),
                grad.clone(),
                scale,
            );
            let expected =
                rms_norm::generic::backward::<Flex>(x, weight, inverse_rms, grad, scale);
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
            let inputs = || LmHeadInputs {
                hidden: hidden.clone(),
                head_weight: head.clone(),
                targets: targets.clone(),
            };
            let found = Flex::lm_head_log_probs(inputs(), plan.clone(), EntropyOutput::Value);
            let expected =
                lm_head::generic::forward::<Flex>(inputs(), &plan, EntropyOutput::Value);
            assert_close(found.0, expected.0);
            assert_close(found.1.clone(), expected.1.clone());
            assert_close(found.2, expected.2.clone());
            let outputs = |log_sum_exp: &FlexTensor| LmHeadOutputGradients {
                log_sum_exp: log_sum_exp.clone(),
                entropy: expected.2.clone(),
                grad: grad.clone(),
                grad_entropy: numbers([count], 4),
            };
            for (head, entropy) in [(true, true), (true, false), (false, true), (false, false)] {
                let gradients = HeadGradients { head, entropy };
                let found = Flex::lm_head_log_probs_backward(
                    inputs(),
                    outputs(&found.1),
                    plan.clone(),
                    gradients,
                );
                let expected = lm_head::generic::backward::<Flex>(
                    inputs(),
                    outputs(&expected.1),
                    &plan,
                    gradients,
                );
                assert_close(found.0, expected.0);
                assert_close(found.1, expected.1);
            }
        }
    }
}
