//! States that come from outside and go out, and their gradients.

use burn::tensor::{DType, Device, Tensor};
use burn_tree_ssm::Implementation::Automatic;
use burn_tree_ssm::{GatedDeltaRuleOptions, TreeRecurrence, tree_gated_delta_rule};
use tree_pack::TreeLayout;

use super::HEADS;
use crate::delta_rule::{Inputs, SLOW};
use crate::support::{Forest, reference_device, relative_error};

/// Sums of states and outputs in another order.
const TOLERANCE: f64 = 1e-10;

fn on<const D: usize>(x: &Tensor<D>, device: &Device) -> Tensor<D> {
    Tensor::from_data(x.to_data(), (device, DType::F64))
}

fn recurrence(forests: &[Forest]) -> TreeRecurrence {
    let layouts: Vec<TreeLayout> = forests.iter().map(Forest::layout).collect();
    let length = layouts.iter().map(TreeLayout::len).max().unwrap();
    TreeRecurrence::from_layouts(&layouts, length)
}

/// A tree cut below its trunk: the trunk gives out its last state, from which the leaves of a
/// second call start. Outputs and all gradients are those of the whole tree, also when a sibling
/// of the cut stays with the trunk.
#[test]
fn a_cut_tree_equals_the_whole() {
    let device = reference_device().autodiff();
    let whole = recurrence(&[Forest(vec![
        (None, 70),
        (Some(0), 9),
        (Some(0), 65),
        (Some(0), 20),
    ])]);
    let (trunk_rows, rows) = (70 + 9, whole.rows());
    let trunk = recurrence(&[Forest(vec![(None, 70), (Some(0), 9)])]).with_requested_rows(&[69]);
    let leaves = recurrence(&[Forest(vec![(None, 65), (None, 20)])])
        .with_initial_states(&[Some(0), Some(0)]);
    let inputs = Inputs::random(&whole, HEADS, SLOW, 1);
    let run = |parts: &[(&TreeRecurrence, std::ops::Range<usize>)]| {
        let leaf4 = |x: &Tensor<4>| on(x, &device).require_grad();
        let leaf3 = |x: &Tensor<3>| on(x, &device).require_grad();
        let [q, k, v] = [&inputs.query, &inputs.key, &inputs.value].map(leaf4);
        let [g, beta] = [&inputs.log_decay, &inputs.beta].map(leaf3);
        let mut states = None;
        let mut outputs = Vec::new();
        for (recurrence, rows) in parts {
            let result = tree_gated_delta_rule(
                q.clone().slice_dim(1, rows.clone()),
                k.clone().slice_dim(1, rows.clone()),
                v.clone().slice_dim(1, rows.clone()),
                g.clone().slice_dim(1, rows.clone()),
                beta.clone().slice_dim(1, rows.clone()),
                recurrence,
                states.take(),
                GatedDeltaRuleOptions::default(),
            );
            states = result.states;
            outputs.push(result.output);
        }
        let output = Tensor::cat(outputs, 1);
        let grad = on(&inputs.grad_output, &device);
        let grads = (output.clone() * grad).sum().backward();
        let gradients = [
            q.grad(&grads).unwrap(),
            k.grad(&grads).unwrap(),
            v.grad(&grads).unwrap(),
            g.grad(&grads).unwrap().unsqueeze_dim(3),
            beta.grad(&grads).unwrap().unsqueeze_dim(3),
        ];
        (output.inner(), gradients)
    };
    let (expected, expected_gradients) = run(&[(&whole, 0..rows)]);
    let (found, gradients) = run(&[(&trunk, 0..trunk_rows), (&leaves, trunk_rows..rows)]);
    assert!(relative_error(&found, &expected) < TOLERANCE);
    for (found, expected) in gradients.iter().zip(&expected_gradients) {
        assert!(relative_error(found, expected) < TOLERANCE);
    }
}

/// A row of several trees that start from different states, one of them from none, in an order
/// that is not that of the states, and a second row that shares one.
#[test]
fn roots_with_different_initial_states() {
    let rows = [
        Forest(vec![
            (None, 5),
            (None, 66),
            (Some(1), 2),
            (None, 3),
            (None, 4),
        ]),
        Forest(vec![(None, 3), (None, 70)]),
    ];
    let states = [Some(2), Some(0), None, Some(2), Some(1), Some(2)];
    for requested in [vec![], vec![4], vec![70, 2, 100]] {
        let recurrence = recurrence(&rows)
            .with_initial_states(&states)
            .with_requested_rows(&requested);
        let inputs = Inputs::random(&recurrence, HEADS, SLOW, 2);
        let found = inputs.found(&reference_device(), DType::F64, Automatic);
        found.assert_close(&inputs.expected(), TOLERANCE, TOLERANCE);
    }
}

/// Which of the two outputs a loss uses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Used {
    Output,
    States,
    Both,
}

fn used_inputs(used: Used) -> Inputs {
    let recurrence = recurrence(&[Forest(vec![(None, 40), (Some(0), 30), (Some(0), 70)])])
        .with_initial_states(&[Some(0)])
        .with_requested_rows(&[39, 50, 139]);
    let mut inputs = Inputs::random(&recurrence, HEADS, SLOW, 3);
    match used {
        Used::Output => inputs.grad_states = None,
        Used::States => inputs.grad_output = inputs.grad_output.zeros_like(),
        Used::Both => {}
    }
    inputs
}

/// Gradients are right whichever outputs a loss uses, with and without recomputation of cheap
/// operations (here those by which the inputs are made).
#[test]
fn unused_outputs_and_recomputation() {
    let strategies: [(&str, Device); 2] = [
        ("keeping everything", reference_device().autodiff()),
        (
            "recomputing",
            reference_device().autodiff().gradient_checkpointing(),
        ),
    ];
    for (name, device) in &strategies {
        for used in [Used::Output, Used::States, Used::Both] {
            let inputs = used_inputs(used);
            let expected = inputs.expected();
            let leaf = |x: &Tensor<4>| on(x, device).require_grad();
            let leaf3 = |x: &Tensor<3>| on(x, device).require_grad();
            let [query, key, value] = [&inputs.query, &inputs.key, &inputs.value].map(leaf);
            let [log_decay, beta] = [&inputs.log_decay, &inputs.beta].map(leaf3);
            let initial = leaf(inputs.initial_states.as_ref().unwrap());
            // Cheap operations before: recomputed if asked for.
            let twice = |x: &Tensor<4>| (x.clone() + x.clone()) * 0.5;
            let result = tree_gated_delta_rule(
                twice(&query),
                twice(&key),
                twice(&value),
                (log_decay.clone() + log_decay.clone()) * 0.5,
                (beta.clone() + beta.clone()) * 0.5,
                &inputs.recurrence,
                Some(twice(&initial)),
                GatedDeltaRuleOptions::default(),
            );
            let states = result.states.unwrap();
            let from_states = inputs
                .grad_states
                .as_ref()
                .map(|grad| (states.clone() * on(grad, device)).sum());
            let from_output = (result.output.clone() * on(&inputs.grad_output, device)).sum();
            let loss = match (used, from_states) {
                (Used::Output, _) => from_output,
                (Used::States, states) => states.unwrap(),
                (Used::Both, states) => from_output + states.unwrap(),
            };
            let grads = loss.backward();
            for (tensor, x, expected) in [
                ("query", &query, &expected.query),
                ("key", &key, &expected.key),
                ("value", &value, &expected.value),
                (
                    "initial",
                    &initial,
                    expected.initial_states.as_ref().unwrap(),
                ),
            ] {
                let error = relative_error(&x.grad(&grads).unwrap(), expected);
                assert!(error < TOLERANCE, "{name}, {used:?}, {tensor}: {error:.1e}");
            }
            for (tensor, x, expected) in [
                ("log_decay", &log_decay, &expected.log_decay),
                ("beta", &beta, &expected.beta),
            ] {
                let error = relative_error(&x.grad(&grads).unwrap(), expected);
                assert!(error < TOLERANCE, "{name}, {used:?}, {tensor}: {error:.1e}");
            }
        }
    }
}

/// Outputs that nobody uses cost no backward pass, and untracked inputs no graph.
#[test]
fn without_gradients() {
    let inputs = used_inputs(Used::Both);
    let tracked = reference_device().autodiff();
    let value = on(&inputs.value, &tracked).require_grad();
    let run = |value: Tensor<4>| {
        tree_gated_delta_rule(
            on(&inputs.query, &tracked),
            on(&inputs.key, &tracked),
            value,
            on(&inputs.log_decay, &tracked),
            on(&inputs.beta, &tracked),
            &inputs.recurrence,
            inputs.initial_states.as_ref().map(|x| on(x, &tracked)),
            GatedDeltaRuleOptions::default(),
        )
    };
    let untracked = run(on(&inputs.value, &tracked));
    assert!(!untracked.output.is_require_grad());
    // A graph of which only one input is tracked.
    let result = run(value.clone());
    let grads = (result.output.clone() * on(&inputs.grad_output, &tracked))
        .sum()
        .backward();
    let grad = value.grad(&grads).unwrap();
    let mut only_output = inputs.clone();
    only_output.grad_states = None;
    let expected = only_output.expected();
    assert!(relative_error(&grad, &expected.value) < TOLERANCE);
    assert!(relative_error(&untracked.output.inner(), &expected.output) < TOLERANCE);
}
