//! What the functions refuse, and what they say.

use burn::tensor::{DType, Tensor};
use burn_tree_nn::{ArgumentError, try_decay_gate, try_gated_rms_norm, try_l2_norm};

use crate::support::{device, reference_device};

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, (&device(), DType::F32))
}

fn message<T>(result: Result<T, ArgumentError>) -> String {
    result.err().expect("an error").to_string()
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
