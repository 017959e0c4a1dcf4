//! Arguments that do not fit are told before anything is computed.

use burn::tensor::{DType, Tensor};
use burn_tree_ssm::Implementation::Portable;
use burn_tree_ssm::{GatedDeltaRuleOptions, TreeRecurrence, try_tree_gated_delta_rule};

use crate::support::{Forest, reference_device};

struct Arguments {
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    log_decay: Tensor<3>,
    beta: Tensor<3>,
    initial_states: Option<Tensor<4>>,
    recurrence: TreeRecurrence,
    options: GatedDeltaRuleOptions,
}

fn zeros<const D: usize>(shape: [usize; D], dtype: DType) -> Tensor<D> {
    Tensor::zeros(shape, (&reference_device(), dtype))
}

/// Arguments that fit: 7 rows, 2 key heads of 4, 4 value heads of 6.
fn fitting() -> Arguments {
    let layout = Forest::comb(&[3], &[2, 2]).layout();
    Arguments {
        query: zeros([1, 7, 2, 4], DType::F32),
        key: zeros([1, 7, 2, 4], DType::F32),
        value: zeros([1, 7, 4, 6], DType::F32),
        log_decay: zeros([1, 7, 4], DType::F32),
        beta: zeros([1, 7, 4], DType::F32),
        initial_states: None,
        recurrence: TreeRecurrence::from_layouts(&[layout], 7),
        options: GatedDeltaRuleOptions::default(),
    }
}

/// The error after a change.
fn error(change: impl FnOnce(&mut Arguments)) -> String {
    let mut arguments = fitting();
    change(&mut arguments);
    try_tree_gated_delta_rule(
        arguments.query,
        arguments.key,
        arguments.value,
        arguments.log_decay,
        arguments.beta,
        &arguments.recurrence,
        arguments.initial_states,
        arguments.options,
    )
    .map(|_| ())
    .unwrap_err()
    .to_string()
}

#[test]
fn shapes() {
    let f32 = DType::F32;
    assert_eq!(
        error(|a| a.query = zeros([2, 7, 2, 4], f32)),
        "tree_gated_delta_rule: query has shape [2, 7, 2, 4], expected [1, 7, 2, 4] (batch and rows of the recurrence)"
    );
    assert_eq!(
        error(|a| a.beta = zeros([1, 8, 4], f32)),
        "tree_gated_delta_rule: beta has shape [1, 8, 4], expected [1, 7, 4] (batch and rows of the recurrence, heads of the value)"
    );
    assert_eq!(
        error(|a| a.key = zeros([1, 7, 2, 5], f32)),
        "tree_gated_delta_rule: key has shape [1, 7, 2, 5], expected [1, 7, 2, 4] (batch and rows of the recurrence, heads of the query)"
    );
    assert_eq!(
        error(|a| a.log_decay = zeros([1, 7, 2], f32)),
        "tree_gated_delta_rule: log_decay has shape [1, 7, 2], expected [1, 7, 4] (batch and rows of the recurrence, heads of the value)"
    );
    assert_eq!(
        error(|a| {
            a.query = zeros([1, 7, 3, 4], f32);
            a.key = zeros([1, 7, 3, 4], f32);
        }),
        "tree_gated_delta_rule: value has shape [1, 7, 4, 6], expected as many heads as a multiple of the 3 of query and key"
    );
    assert_eq!(
        error(|a| a.value = zeros([1, 7, 4, 0], f32)),
        "tree_gated_delta_rule: value has shape [1, 7, 4, 0], expected at least 1 in each dimension"
    );
}

#[test]
fn initial_states() {
    let states = |shape| Some(zeros::<4>(shape, DType::F32));
    assert_eq!(
        error(|a| a.initial_states = states([1, 4, 4, 6])),
        "tree_gated_delta_rule: initial_states has shape [1, 4, 4, 6], expected none: no root of the recurrence has an initial state"
    );
    let named = |a: &mut Arguments| {
        a.recurrence = a.recurrence.clone().with_initial_states(&[Some(0)]);
    };
    assert_eq!(
        error(named),
        "tree_gated_delta_rule: initial_states is missing, expected [1, 4, 4, 6]: roots of the recurrence have initial states"
    );
    assert_eq!(
        error(|a| {
            named(a);
            a.initial_states = states([1, 4, 6, 4]);
        }),
        "tree_gated_delta_rule: initial_states has shape [1, 4, 6, 4], expected [1, 4, 4, 6] (initial states of the recurrence, heads of the value, dimensions of query and value)"
    );
}

/// The definition does not start from zero where a state is missing.
#[test]
#[should_panic(expected = "initial_states is missing, expected [1, 4, 4, 6]")]
fn initial_states_of_the_definition() {
    let arguments = fitting();
    burn_tree_ssm::gated_delta_rule::reference::tree_gated_delta_rule(
        arguments.query,
        arguments.key,
        arguments.value,
        arguments.log_decay,
        arguments.beta,
        &arguments.recurrence.with_initial_states(&[Some(0)]),
        None,
        arguments.options,
    );
}

/// A decay of 0.05 a row is lost in bf16, where 1 - 0.05 times a state is rounded to 1/256.
#[test]
fn gates_and_states_in_less_than_f32() {
    assert_eq!(
        error(|a| a.log_decay = zeros([1, 7, 4], DType::BF16)),
        "tree_gated_delta_rule: log_decay is BF16, expected F32 (gates and states are at least f32)"
    );
    assert_eq!(
        error(|a| a.value = zeros([1, 7, 4, 6], DType::F64)),
        "tree_gated_delta_rule: query is F32, expected F64, the dtype of value"
    );
}

#[test]
fn options() {
    assert_eq!(
        error(|a| a.options.scale = Some(f64::NAN)),
        "tree_gated_delta_rule: option `scale` is NaN, expected 0 or a number in the range of f32"
    );
    // In f32 one is infinite, the other zero.
    for scale in [1e39, 1e-50] {
        assert_eq!(
            error(|a| a.options.scale = Some(scale)),
            format!(
                "tree_gated_delta_rule: option `scale` is {scale}, expected 0 or a number in the range of f32"
            )
        );
    }
    if !tree_training_devices::is_cubecl() {
        let text = error(|a| a.options.implementation = Portable);
        let start = "tree_gated_delta_rule: implementation Portable cannot run: ";
        assert!(text.starts_with(start), "{text}");
    }
}

#[test]
#[should_panic(
    expected = "tree_gated_delta_rule: query has shape [1, 6, 2, 4], expected [1, 7, 2, 4]"
)]
fn the_plain_function_panics_with_the_same_text() {
    let arguments = fitting();
    let options = GatedDeltaRuleOptions::default();
    burn_tree_ssm::tree_gated_delta_rule(
        arguments.query.slice_dim(1, 0..6),
        arguments.key,
        arguments.value,
        arguments.log_decay,
        arguments.beta,
        &arguments.recurrence,
        None,
        options,
    );
}
