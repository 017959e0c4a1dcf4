//! What the functions refuse, and what they say.

use burn::tensor::{DType, Tensor};
use burn_tree_ssm::{
    ArgumentError, CausalConv1dOptions, TreeRecurrence, try_tree_causal_conv1d,
    try_tree_causal_conv1d_split,
};

use crate::support::{Forest, device};

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
