//! Flex: the implementation for CPU tensors in memory.

use std::sync::Arc;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{Bytes, DType, Element, Shape, bf16, f16};
use burn_flex::{FlexTensor, Layout};
use burn_tree_kit::cpu::Storage;
use burn_tree_kit::implementation::Implementation;

use crate::mask::Visibility;
use crate::ops::TreeAttentionOps;
use crate::rope::native as native_rope;
use crate::rope::settings::RopeSettings;
use crate::tree_attention::dims::Dims;
use crate::tree_attention::generic;
use crate::tree_attention::native::{self, Problem};
use crate::tree_attention::options::AttentionSettings;

/// A type that a Flex tensor stores. The values computed with are stored by some tensor, too.
trait FlexFloat: Storage<Compute: Element + bytemuck::Pod> + Element + bytemuck::Pod {}
impl<T: Storage<Compute: Element + bytemuck::Pod> + Element + bytemuck::Pod> FlexFloat for T {}

/// Calls a generic function with the element type of a dtype.
macro_rules! with_float {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            DType::F64 => $function::<f64>($($argument),*),
            DType::F32 | DType::Flex32 => $function::<f32>($($argument),*),
            DType::F16 => $function::<f16>($($argument),*),
            DType::BF16 => $function::<bf16>($($argument),*),
            other => unreachable!("dtype {other:?} was refused before dispatch"),
        }
    };
}

impl TreeAttentionOps for Flex {
    fn tree_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        if settings.implementation == Implementation::Generic {
            return generic::forward::<Self>(query, key, value, &visibility, settings);
        }
        with_float!(
            query.dtype(),
            forward(query, key, value, &visibility, settings)
        )
    }

    fn tree_attention_backward(
        grad_output: FloatTensor<Self>,
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        output: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        if settings.implementation == Implementation::Generic {
            return generic::backward::<Self>(
                grad_output,
                query,
                key,
                value,
                output,
                log_sum_exp,
                &visibility,
                settings,
            );
        }
        let results = [output, log_sum_exp, grad_output];
        with_float!(
            query.dtype(),
            backward(query, key, value, results, &visibility, settings)
        )
    }

    fn rope(
        x: FloatTensor<Self>,
        position_ids: IntTensor<Self>,
        settings: RopeSettings,
    ) -> FloatTensor<Self> {
        with_float!(x.dtype(), rope(x, position_ids, settings))
    }
}

fn forward<E: FlexFloat>(
    query: FlexTensor,
    key: FlexTensor,
    value: FlexTensor,
    visibility: &Visibility,
    settings: AttentionSettings,
) -> (FlexTensor, FlexTensor) {
    let inputs = [query, key, value].map(|tensor| tensor.to_contiguous());
    let problem = problem::<E>(&inputs, visibility, settings);
    let result = native::forward(&problem);
    (
        tensor(result.output, &problem.dims.output_shape()),
        tensor(result.log_sum_exp, &problem.dims.rows_shape()),
    )
}

fn backward<E: FlexFloat>(
    query: FlexTensor,
    key: FlexTensor,
    value: FlexTensor,
    results: [FlexTensor; 3],
    visibility: &Visibility,
    settings: AttentionSettings,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let inputs = [query, key, value].map(|tensor| tensor.to_contiguous());
    let [output, log_sum_exp, grad_output] = results.map(|tensor| tensor.to_contiguous());
    let problem = problem::<E>(&inputs, visibility, settings);
    let gradients = native::backward(
        &problem,
        output.storage::<E>(),
        log_sum_exp.storage::<E::Compute>(),
        grad_output.storage::<E>(),
    );
    let [query, key, value] = inputs.each_ref().map(|input| input.shape());
    (
        tensor(gradients.query, &query),
        tensor(gradients.key, &key),
        tensor(gradients.value, &value),
    )
}

fn rope<E: FlexFloat>(
    x: FlexTensor,
    position_ids: FlexTensor,
    settings: RopeSettings,
) -> FlexTensor {
    let (x, shape) = (x.to_contiguous(), x.shape());
    let positions = position_ids.into_data().iter::<i64>().collect::<Vec<_>>();
    let dims = [shape[0], shape[1], shape[2], shape[3]];
    let out = native_rope::rope(x.storage::<E>(), dims, &positions, settings);
    tensor(out, &shape)
}

fn problem<'a, E: FlexFloat>(
    [query, key, value]: &'a [FlexTensor; 3],
    visibility: &'a Visibility,
    settings: AttentionSettings,
) -> Problem<'a, E> {
    Problem {
        dims: Dims::new(query, key, value),
        settings,
        visibility,
        query: query.storage(),
        key: key.storage(),
        value: value.storage(),
    }
}

fn tensor<E: Element + bytemuck::Pod>(values: Vec<E>, shape: &[usize]) -> FlexTensor {
    FlexTensor::new(
        Bytes::from_elems(values),
        Layout::contiguous(Shape::from(shape)),
        E::dtype(),
    )
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Int, Tensor};
    use proptest::prelude::*;

    use super::*;
    use crate::calls;
    use crate::rope::RopeScaling;
    use crate::rope::settings::{RopeConfig, RopeDirection, RopePairing};
    use crate::support::{Case, cases, random, relative_error};
    use crate::tree_attention::options::TreeAttentionOptions;

    #[test]
    fn public_functions_run_this_implementation() {
        let device = Device::flex().autodiff();
        let ids = Tensor::<2, Int>::from_ints([[0, 1, 2]], &device.clone().inner());
        let config = RopeConfig::new(1e4);
        let x = random([1, 2, 3, 4], 1, DType::F32, &device).require_grad();
        let rotated = crate::rope(x.clone(), ids, &config);
        let layout = crate::support::Forest(vec![(None, 1), (Some(0), 1), (Some(0), 1)]).layout();
        let mask = crate::TreeMask::from_layouts(&[layout], 3, &device);
        let options = TreeAttentionOptions::default();
        let output =
            crate::tree_attention(rotated.clone(), rotated.clone(), rotated, &mask, options);
        output.sum().backward();
        assert_eq!(calls::take(), ["rope", "forward", "backward", "rope"]);
    }

    fn primitive(tensor: Tensor<4>) -> FlexTensor {
        FlexTensor::from_data(tensor.into_data())
    }

    /// With trailing dimensions of 1 up to four.
    fn tensor(primitive: FlexTensor) -> Tensor<4> {
        let (mut shape, dtype) = (primitive.shape().to_vec(), primitive.dtype());
        shape.resize(4, 1);
        let data = primitive.reshape(Shape::from(shape)).into_data();
        Tensor::from_data(data, (&Device::flex(), dtype))
    }

    fn attention_equals_generic(case: &Case) -> Result<(), TestCaseError> {
        let device = Device::flex();
        let mask = case.mask(&device);
        let [b, n, m] = [mask.batch_size(), mask.n_queries(), mask.n_keys()];
        let (heads, d, dv) = (case.kv_heads * case.group, case.head_dim, case.value_dim);
        let input = |shape, seed| primitive(random(shape, case.seed ^ seed, DType::F64, &device));
        let query = input([b, heads, n, d], 1);
        let key = input([b, case.kv_heads, m, d], 2);
        let value = input([b, case.kv_heads, m, dv], 3);
        let grad = input([b, heads, n, dv], 4);
        let run = |implementation| {
            let settings = AttentionSettings {
                scale: 2.0,
                softcap: case.softcap,
                sliding_window: case.sliding_window,
                implementation,
            };
            let (output, log_sum_exp) = Flex::tree_attention(
                query.clone(),
                key.clone(),
                value.clone(),
                mask.visibility().clone(),
                settings,
            );
            let gradients = Flex::tree_attention_backward(
                grad.clone(),
                query.clone(),
                key.clone(),
                value.clone(),
                output.clone(),
                log_sum_exp.clone(),
                mask.visibility().clone(),
                settings,
            );
            [output, log_sum_exp, gradients.0, gradients.1, gradients.2]
        };
        calls::take();
        let ours = run(Implementation::Automatic);
        assert_eq!(calls::take(), ["forward", "backward"]);
        let generic = run(Implementation::Generic);
        assert!(calls::take().is_empty());

        let names = ["output", "log_sum_exp", "query", "key", "value"];
        for (name, (ours, generic)) in names.into_iter().zip(ours.into_iter().zip(generic)) {
            let error = relative_error(&tensor(ours), &tensor(generic));
            // Sums in another order.
            prop_assert!(error < 1e-11, "{name}: {error:e}");
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn native_attention_equals_generic(case in cases(12)) {
            attention_equals_generic(&case)?;
        }

        #[test]
        fn native_rope_equals_generic(
            positions in prop::collection::vec(0..5000i64, 2 * 9),
            half in 1..=4usize,
            backward: bool,
            interleaved: bool,
            seed: u64,
        ) {
            let x = primitive(random([2, 3, 9, 8], seed, DType::F64, &Device::flex()));
            let ids = burn::tensor::TensorData::new(positions, [2, 9]);
            let ids = FlexTensor::from_data(ids);
            let direction = if backward { RopeDirection::Backward } else { RopeDirection::Forward };
            let settings = RopeSettings {
                theta: 1e4,
                rotary_dim: 2 * half,
                pairing: if interleaved { RopePairing::Interleaved } else { RopePairing::Halves },
                direction,
                scaling: RopeScaling::None,
            };
            let ours = rope::<f64>(x.clone(), ids.clone(), settings);
            let generic = crate::rope::generic::rope::<Flex>(x, ids, settings);
            let error = relative_error(&tensor(ours), &tensor(generic));
            // The same angles; sine and cosine may differ in the last bit.
            prop_assert!(error < 1e-14, "{error:e}");
        }
    }
}
