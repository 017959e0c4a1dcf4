//! Errors for invalid arguments, and their messages.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use burn_tree_nn::{
    ArgumentError, GatherError, GatherPlan, gather_rows, grouped_linear, rms_norm, swiglu,
    try_decay_gate, try_gated_rms_norm, try_gather_rows, try_grouped_linear, try_l2_norm,
    try_rms_norm, try_swiglu, try_zero_centered_rms_norm,
};

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
    // The last ones are zero, subnormal and infinite in f32.
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

/// The norm with the weight, and with one plus the weight.
#[test]
fn root_mean_square_norms_tell_what_does_not_fit() {
    type Norm = fn(Tensor<2>, Tensor<1>, f64) -> Result<Tensor<2>, ArgumentError>;
    let norms: [(&str, Norm); 2] = [
        ("rms_norm", try_rms_norm),
        ("zero_centered_rms_norm", try_zero_centered_rms_norm),
    ];
    for (op, norm) in norms {
        let text = |x, weight, epsilon| message(norm(x, weight, epsilon));
        assert_eq!(
            text(zeros([2, 0]), zeros([0]), 1e-6),
            format!("{op}: x has shape [2, 0], expected at least 1 in the last dimension")
        );
        assert_eq!(
            text(zeros([2, 3]), zeros([2]), 1e-6),
            format!("{op}: weight has shape [2], expected [3] (last dimension of x)")
        );
        assert_eq!(
            text(zeros([2, 3]), zeros([3]), 0.0),
            format!("{op}: epsilon is 0, expected a positive number, normal in f32")
        );
        norm(zeros([2, 3]), zeros([3]).cast(DType::F16), 1e-6).unwrap();
        let nothing = norm(zeros([0, 3]), zeros([3]), 1e-6).unwrap();
        assert_eq!(nothing.dims(), [0, 3]);
    }
}

#[test]
fn activations_tell_what_does_not_fit() {
    assert_eq!(
        message(try_swiglu(zeros([2, 3]), zeros([2, 2]))),
        "swiglu: up has shape [2, 2], expected [2, 3] (shape of gate)"
    );
    assert_eq!(
        message(try_swiglu(zeros([2, 3]), zeros([2, 3]).cast(DType::F16))),
        "swiglu: up is F16, expected F32, the dtype of gate"
    );
    assert_eq!(
        try_swiglu(zeros([0, 3]), zeros([0, 3])).unwrap().dims(),
        [0, 3]
    );
}

#[test]
fn gathers_tell_what_does_not_fit() {
    let plan = |indices, rows| Arc::new(GatherPlan::new(indices, rows).unwrap());
    assert_eq!(
        message(try_gather_rows(zeros([3, 2]), &plan(vec![0], 4))),
        "gather_rows: x has shape [3, 2], expected [4, 2] (rows of the plan)"
    );
    assert_eq!(
        message(try_gather_rows(zeros([3, 0]), &plan(vec![0], 3))),
        "gather_rows: x has shape [3, 0], expected at least 1 in the last dimension"
    );
    let nothing = try_gather_rows(zeros([3, 2]), &plan(vec![], 3)).unwrap();
    assert_eq!(nothing.dims(), [0, 2]);
}

#[test]
fn plans_of_gathers_tell_what_does_not_fit() {
    let error = GatherPlan::new(vec![0, 4], 4).unwrap_err();
    assert_eq!(error.to_string(), "index 1 is 4, but there are 4 rows");
    let (position, index, rows) = (1, 4, 4);
    assert_eq!(
        error,
        GatherError::Index {
            position,
            index,
            rows
        }
    );
    // The error comes before any allocation of that size.
    for rows in [(1 << 31) + 1, usize::MAX] {
        let error = GatherPlan::new(vec![0], rows).unwrap_err();
        assert_eq!(error, GatherError::TooManyRows { rows });
        assert_eq!(
            error.to_string(),
            format!("{rows} rows, expected at most 2^31")
        );
    }
}

#[test]
fn grouped_products_tell_what_does_not_fit() {
    let text = |x: [usize; 2], weight: [usize; 3], sizes: &[usize]| {
        let sizes = Arc::new(sizes.to_vec());
        message(try_grouped_linear(zeros(x), zeros(weight), &sizes))
    };
    assert_eq!(
        text([5, 3], [2, 4, 1], &[2, 3]),
        "grouped_linear: weight has shape [2, 4, 1], expected [2, 3, 1] (columns of x)"
    );
    assert_eq!(
        text([5, 0], [2, 0, 1], &[2, 3]),
        "grouped_linear: x has shape [5, 0], expected at least 1 in the last dimension"
    );
    assert_eq!(
        text([5, 3], [2, 3, 0], &[2, 3]),
        "grouped_linear: weight has shape [2, 3, 0], expected at least 1 in each dimension"
    );
    assert_eq!(
        text([5, 3], [2, 3, 1], &[2, 3, 0]),
        "grouped_linear: group_sizes has 3 entries, expected 2 (matrices of weight)"
    );
    assert_eq!(
        text([5, 3], [2, 3, 1], &[2, 2]),
        "grouped_linear: group_sizes add up to 4, expected 5 (rows of x)"
    );
    // The wrapped sum would be 5.
    assert_eq!(
        text([5, 3], [2, 3, 1], &[usize::MAX, 6]),
        format!(
            "grouped_linear: group_sizes add up to more than {}, expected 5 (rows of x)",
            usize::MAX
        )
    );
    let sizes = Arc::new(vec![0, 5]);
    let narrow = zeros([2, 3, 1]).cast(DType::F16);
    assert_eq!(
        message(try_grouped_linear(zeros([5, 3]), narrow, &sizes)),
        "grouped_linear: weight is F16, expected F32, the dtype of x"
    );
    let none = Arc::new(vec![0, 0]);
    let nothing = try_grouped_linear(zeros([0, 3]), zeros([2, 3, 1]), &none).unwrap();
    assert_eq!(nothing.dims(), [0, 1]);
}

#[test]
#[should_panic(expected = "rms_norm: weight has shape [2], expected [3] (last dimension of x)")]
fn the_norm_panics_with_the_text_of_its_error() {
    rms_norm(zeros([2, 3]), zeros([2]), 1e-6);
}

#[test]
#[should_panic(expected = "swiglu: up has shape [2, 2], expected [2, 3] (shape of gate)")]
fn the_activation_panics_with_the_text_of_its_error() {
    swiglu(zeros([2, 3]), zeros([2, 2]));
}

#[test]
#[should_panic(expected = "gather_rows: x has shape [3, 2], expected [4, 2] (rows of the plan)")]
fn the_gather_panics_with_the_text_of_its_error() {
    let plan = Arc::new(GatherPlan::new(vec![0], 4).unwrap());
    gather_rows(zeros([3, 2]), &plan);
}

#[test]
#[should_panic(expected = "grouped_linear: group_sizes add up to 4, expected 5 (rows of x)")]
fn the_grouped_product_panics_with_the_text_of_its_error() {
    grouped_linear(zeros([5, 3]), zeros([2, 3, 1]), &Arc::new(vec![2, 2]));
}

/// Two devices exist if a CubeCL runtime is tested and Flex is built in.
#[test]
fn tensors_on_other_devices_are_named() {
    let (here, there) = (device().inner(), reference_device());
    if here == there {
        return;
    }
    fn on<const D: usize>(device: &burn::tensor::Device, shape: [usize; D]) -> Tensor<D> {
        Tensor::zeros(shape, (device, DType::F32))
    }
    let expect = |found: String, tensor: &str, op: &str, first: &str| {
        assert_eq!(
            found,
            format!("{op}: {tensor} is on {there:?}, expected {here:?}, where {first} is")
        );
    };
    let norm = try_rms_norm(on(&here, [2, 3]), on(&there, [3]), 1e-6);
    expect(message(norm), "weight", "rms_norm", "x");
    let activation = try_swiglu(on(&here, [2, 3]), on(&there, [2, 3]));
    expect(message(activation), "up", "swiglu", "gate");
    let sizes = Arc::new(vec![2]);
    let grouped = try_grouped_linear(on(&here, [2, 3]), on(&there, [1, 3, 1]), &sizes);
    expect(message(grouped), "weight", "grouped_linear", "x");
    let gated = try_gated_rms_norm(on(&here, [2, 3]), on(&there, [2, 3]), on(&here, [3]), 1e-6);
    expect(message(gated), "gate", "gated_rms_norm", "x");
    let gate = try_decay_gate(on(&here, [1, 2, 3]), on(&there, [3]), on(&here, [3]));
    expect(message(gate), "a_log", "decay_gate", "a");
}
