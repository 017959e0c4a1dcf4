//! Flex: the implementation for CPU tensors in memory.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{Bytes, DType, Element, Shape, bf16, f16};
use burn_flex::{FlexTensor, Layout};
use burn_tree_kit::cpu::Storage;
use burn_tree_kit::dtype::at_least_f32;
use burn_tree_kit::implementation::Implementation;

use crate::gated_delta_rule::native::{self, Problem, Results, Shapes};
use crate::gated_delta_rule::settings::lowest_log_decay;
use crate::gated_delta_rule::{
    self, GatedDeltaRuleGradients, GatedDeltaRuleInputs, GatedDeltaRuleSaved,
    GatedDeltaRuleSettings,
};
use crate::ops::TreeSsmOps;
use crate::recurrence::TreeRecurrence;

type Inputs = GatedDeltaRuleInputs<Flex>;
type Saved = GatedDeltaRuleSaved<Flex>;
type Gradients = GatedDeltaRuleGradients<Flex>;

/// A type that a Flex tensor stores. The values computed with are stored by some tensor, too.
trait FlexFloat: Storage<Compute: Element + bytemuck::Pod> + Element + bytemuck::Pod {}
impl<T: Storage<Compute: Element + bytemuck::Pod> + Element + bytemuck::Pod> FlexFloat for T {}

/// Calls a generic function with the element type of a dtype.
macro_rules! with_float {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            DType::F64 => $function::<f64>($($argument),*),
            DType::F32 => $function::<f32>($($argument),*),
            DType::F16 => $function::<f16>($($argument),*),
            DType::BF16 => $function::<bf16>($($argument),*),
            other => unreachable!("dtype {other:?} was refused before dispatch"),
        }
    };
}

impl TreeSsmOps for Flex {
    fn gated_delta_rule(
        inputs: Inputs,
        recurrence: TreeRecurrence,
        settings: GatedDeltaRuleSettings,
    ) -> (FloatTensor<Self>, Saved) {
        if settings.implementation == Implementation::Generic {
            return gated_delta_rule::generic::forward::<Self>(inputs, &recurrence, settings);
        }
        let dtype = inputs.value.dtype();
        with_float!(dtype, forward(inputs, &recurrence, settings))
    }

    fn gated_delta_rule_backward(
        inputs: Inputs,
        saved: Saved,
        grad_output: FloatTensor<Self>,
        grad_states: FloatTensor<Self>,
        recurrence: TreeRecurrence,
        settings: GatedDeltaRuleSettings,
    ) -> Gradients {
        let grads = (grad_output, grad_states);
        if settings.implementation == Implementation::Generic {
            return gated_delta_rule::generic::backward::<Self>(
                inputs,
                saved,
                grads,
                &recurrence,
                settings,
            );
        }
        let dtype = inputs.value.dtype();
        with_float!(dtype, backward(inputs, saved, grads, &recurrence, settings))
    }
}

fn forward<E: FlexFloat>(
    inputs: Inputs,
    recurrence: &TreeRecurrence,
    settings: GatedDeltaRuleSettings,
) -> (FlexTensor, Saved) {
    let inputs = contiguous(inputs);
    let problem = problem::<E>(&inputs, recurrence, settings);
    let Shapes {
        heads,
        key_dim,
        value_dim,
        ..
    } = problem.shapes;
    let result = native::forward(&problem);
    let (rows, slots) = (recurrence.rows(), recurrence.n_slots().max(1));
    let columns = recurrence.window_rows();
    let saved = Saved {
        states: tensor(result.states, [slots, heads, key_dim, value_dim].into()),
        inverse: tensor(result.inverse, [rows, heads, columns].into()),
    };
    let output = tensor(result.output, [rows, heads, value_dim].into());
    (output, saved)
}

fn backward<E: FlexFloat>(
    inputs: Inputs,
    saved: Saved,
    (grad_output, grad_states): (FlexTensor, FlexTensor),
    recurrence: &TreeRecurrence,
    settings: GatedDeltaRuleSettings,
) -> Gradients {
    let inputs = contiguous(inputs);
    let results = [saved.states, saved.inverse, grad_output, grad_states];
    let [states, inverse, grad_output, grad_states] = results.map(|tensor| tensor.to_contiguous());
    let it = native::backward(
        &problem::<E>(&inputs, recurrence, settings),
        &Results {
            states: states.storage(),
            inverse: inverse.storage(),
            grad_output: grad_output.storage(),
            grad_states: grad_states.storage(),
        },
    );
    Gradients {
        query: tensor(it.query, inputs.query.shape()),
        key: tensor(it.key, inputs.key.shape()),
        value: tensor(it.value, inputs.value.shape()),
        log_decay: tensor(it.log_decay, inputs.log_decay.shape()),
        beta: tensor(it.beta, inputs.beta.shape()),
        initial_states: tensor(it.initial_states, inputs.initial_states.shape()),
    }
}

fn contiguous(inputs: Inputs) -> Inputs {
    let tensors = inputs.into_array();
    Inputs::from_array(tensors.map(|tensor| tensor.to_contiguous()))
}

fn problem<'a, E: FlexFloat>(
    inputs: &'a Inputs,
    recurrence: &'a TreeRecurrence,
    settings: GatedDeltaRuleSettings,
) -> Problem<'a, E> {
    let [_, key_heads, key_dim] = inputs.query.shape().dims();
    let [_, heads, value_dim] = inputs.value.shape().dims();
    Problem {
        shapes: Shapes {
            key_heads,
            heads,
            key_dim,
            value_dim,
        },
        recurrence,
        scale: settings.scale,
        query: inputs.query.storage(),
        key: inputs.key.storage(),
        value: inputs.value.storage(),
        log_decay: inputs.log_decay.storage(),
        lowest_log_decay: lowest_log_decay(at_least_f32(inputs.value.dtype())),
        beta: inputs.beta.storage(),
        initial_states: inputs.initial_states.storage(),
    }
}

fn tensor<E: Element + bytemuck::Pod>(values: Vec<E>, shape: Shape) -> FlexTensor {
    FlexTensor::new(
        Bytes::from_elems(values),
        Layout::contiguous(shape),
        E::dtype(),
    )
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};
    use tree_pack::{Segment, TreeLayout};

    use super::*;
    use crate::gated_delta_rule::{GatedDeltaRuleOptions, tree_gated_delta_rule};

    /// The public function runs this implementation, unless the generic one is asked for.
    #[test]
    fn which_implementation_runs() {
        let layout = TreeLayout {
            tokens: vec![1, 2],
            position_ids: vec![0, 1],
            parents: vec![-1, 0],
            subtree_ends: vec![2, 2],
            segments: vec![Segment {
                start: 0,
                end: 2,
                parent: None,
            }],
        };
        let recurrence = TreeRecurrence::from_layouts(&[layout], 2);
        let device = Device::flex().autodiff();
        for (implementation, expected) in [
            (Implementation::Automatic, vec!["forward", "backward"]),
            (Implementation::Generic, vec![]),
        ] {
            let x = Tensor::<4>::ones([1, 2, 1, 3], &device).require_grad();
            let gate = || Tensor::<3>::zeros([1, 2, 1], &device);
            let options = GatedDeltaRuleOptions {
                implementation,
                ..Default::default()
            };
            let [q, k, v] = [(); 3].map(|()| x.clone());
            let result = tree_gated_delta_rule(q, k, v, gate(), gate(), &recurrence, None, options);
            result.output.sum().backward();
            assert_eq!(native::calls::take(), expected);
        }
    }
}
