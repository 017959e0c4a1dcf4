//! What the functions refuse, and what they say.

use burn::tensor::{DType, Tensor};
use burn_tree_ssm::{
    ArgumentError, CausalConv1dOptions, TreeRecurrence, try_decay_gate, try_gated_rms_norm,
    try_l2_norm, try_tree_causal_conv1d, try_tree_causal_conv1d_split,
};

use crate::support::{Forest, device, reference_device};

fn recurrence() -> TreeRecurrence {
    TreeRecurrence::from_layouts(&[Forest(vec![(None, 2), (Some(0), 1)]).layout()], 4)
}

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, (&device(), DType::F32))
}

fn message<T>(result: Result<T, ArgumentError>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn convolutions_tell_what_does_not_fit() {
    let options = CausalConv1dOptions::default();
    let run = |x: [usize; 3], weight: [usize; 2], tails: Option<[usize; 3]>| {
        let recurrence = recurrence().with_initial_states(&[Some(0)]);
        let tails = tails.map(zeros);
        message(try_tree_causal_conv1d(
            zeros(x),
            zeros(weight),
            &recurrence,
            tails,
            options,
        ))
    };
    assert_eq!(
        run([1, 3, 6], [6, 4], Some([1, 3, 6])),
        "tree_causal_conv1d: x has shape [1, 3, 6], expected [1, 4, 6] (batch and rows of the recurrence)"
    );
    assert_eq!(
        run([1, 4, 6], [5, 4], Some([1, 3, 6])),
        "tree_causal_conv1d: weight has shape [5, 4], expected [6, 4] (a kernel for each channel of x)"
    );
    assert_eq!(
        run([1, 4, 6], [6, 0], Some([1, 3, 6])),
        "tree_causal_conv1d: weight has shape [6, 0], expected at least 1 in each dimension"
    );
    assert_eq!(
        run([1, 4, 6], [6, 4], Some([2, 3, 6])),
        "tree_causal_conv1d: initial_tails has shape [2, 3, 6], expected [1, 3, 6] (initial states of the recurrence, kernel size - 1, channels of x)"
    );
    assert_eq!(
        run([1, 4, 6], [6, 4], None),
        "tree_causal_conv1d: initial_tails is missing, expected [1, 3, 6]: roots of the recurrence have initial states"
    );
    let f16 = zeros([1, 3, 6]).cast(DType::F16);
    let with_state = recurrence().with_initial_states(&[Some(0)]);
    assert_eq!(
        message(try_tree_causal_conv1d(
            zeros([1, 4, 6]),
            zeros([6, 4]),
            &with_state,
            Some(f16),
            options
        )),
        "tree_causal_conv1d: initial_tails is F16, expected F32, the dtype of x"
    );
    let split = |parts| {
        let (x, weight) = (zeros([1, 4, 6]), zeros([6, 4]));
        message(try_tree_causal_conv1d_split(
            x,
            weight,
            &recurrence(),
            None,
            parts,
            options,
        ))
    };
    for parts in [[2, 2, 3], [6, 0, 0], [usize::MAX, 6, 1]] {
        assert_eq!(
            split(parts),
            format!(
                "tree_causal_conv1d_split: x has shape [1, 4, 6], expected as many channels as the parts {parts:?}, each of at least 1"
            )
        );
    }
}

/// The definition does not read zeros where a tail is missing.
#[test]
#[should_panic(expected = "initial_tails is missing, expected [1, 3, 6]")]
fn tails_of_the_definition() {
    let recurrence = recurrence().with_initial_states(&[Some(0)]);
    let options = CausalConv1dOptions::default();
    let (x, weight) = (zeros([1, 4, 6]), zeros([6, 4]));
    burn_tree_ssm::causal_conv1d::reference::tree_causal_conv1d(
        x,
        weight,
        &recurrence,
        None,
        options,
    );
}

#[test]
fn gates_and_norms_tell_what_does_not_fit() {
    assert_eq!(
        message(try_decay_gate(zeros([1, 4, 3]), zeros([3]), zeros([2]))),
        "decay_gate: dt_bias has shape [2], expected [3] (value heads of a)"
    );
    assert_eq!(
        message(try_l2_norm(zeros([2, 0]), 1e-6)),
        "l2_norm: x has shape [2, 0], expected at least 1 in each dimension"
    );
    // The last are zero, less than normal and infinite in f32.
    for epsilon in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-50, 1e-40, 1e39] {
        assert_eq!(
            message(try_l2_norm(zeros([2, 3]), epsilon)),
            format!("l2_norm: epsilon is {epsilon}, expected a positive number, normal in f32")
        );
    }
    let wide = Tensor::<2>::zeros([2, 3], (&reference_device(), DType::F64));
    try_l2_norm(wide.clone(), 1e-50).unwrap();
    assert_eq!(
        message(try_l2_norm(wide, 1e-320)),
        format!(
            "l2_norm: epsilon is {}, expected a positive number, normal in f64",
            1e-320
        )
    );
    let norm = |gate: Tensor<2>, weight| {
        message(try_gated_rms_norm(zeros([2, 3]), gate, zeros(weight), 1e-6))
    };
    assert_eq!(
        norm(zeros([2, 2]), [3]),
        "gated_rms_norm: gate has shape [2, 2], expected [2, 3] (shape of x)"
    );
    assert_eq!(
        norm(zeros([2, 3]), [2]),
        "gated_rms_norm: weight has shape [2], expected [3] (last dimension of x)"
    );
    assert_eq!(
        norm(zeros([2, 3]).cast(DType::F16), [3]),
        "gated_rms_norm: gate is F16, expected F32, the dtype of x"
    );
}
