//! Comparisons with the definition.

use burn::tensor::{DType, Tensor};
use burn_tree_ssm::Implementation::{self, Portable};
use burn_tree_ssm::TreeRecurrence;
use tree_training_devices::computes_in;

use crate::delta_rule::{Heads, Inputs};
use crate::kernels::{available, cube_device};
use crate::support::{device, values};

/// A dtype, and the largest relative errors of outputs and gradients, with their reasons.
pub const DTYPES: [(DType, f64, f64); 3] = [
    // The project's bar: the order of sums, and exponentials to about 2^-22.
    (DType::F32, 1e-5, 2e-5),
    // Between the kernels, operators, updates and states are rounded to 8 bits; gradients pass
    // through about twice as many of them.
    (DType::BF16, 1.6e-2, 3.2e-2),
    // The same with 11 bits.
    (DType::F16, 2e-3, 4e-3),
];

/// Fills memory of the sizes of a call's tensors with NaN and gives it back, for the call to get.
pub fn poison(recurrence: &TreeRecurrence, heads: Heads, dtype: DType) {
    let Heads {
        key_dim, value_dim, ..
    } = heads;
    let value_heads = heads.key_heads * heads.group;
    let states = recurrence.n_windows().max(recurrence.n_slots()) + 2;
    for (rows, width) in [
        (recurrence.rows(), key_dim),
        (recurrence.rows(), value_dim),
        (recurrence.rows(), 64),
        (recurrence.rows(), 5),
        (states, key_dim * value_dim),
    ] {
        for dtype in [dtype, DType::F32] {
            let shape = [rows * value_heads * width];
            let nan = (0..2).map(|_| Tensor::<1>::full(shape, f32::NAN, (&device(), dtype)));
            for tensor in nan.collect::<Vec<_>>() {
                assert!(tensor.into_data().iter::<f32>().all(f32::is_nan));
            }
        }
    }
}

/// Compares what the device has of the kernels with the definition.
pub fn compare(recurrence: &TreeRecurrence, heads: Heads, decay: f64, dtypes: &[DType]) {
    if cube_device().is_none() {
        return;
    }
    for &dtype in dtypes.iter().filter(|&&dtype| computes_in(dtype)) {
        let implementations = available(dtype, heads);
        assert!(implementations.contains(&Portable), "{dtype:?}, {heads:?}");
        compare_all(recurrence, heads, decay, dtype, &implementations);
    }
}

/// Compares implementations with the definition.
pub fn compare_all(
    recurrence: &TreeRecurrence,
    heads: Heads,
    decay: f64,
    dtype: DType,
    implementations: &[Implementation],
) {
    let bounds = DTYPES.iter().find(|(of, ..)| *of == dtype);
    let &(_, forward, backward) = bounds.expect("bounds of the dtype");
    let inputs = Inputs::random(recurrence, heads, decay, 7).rounded(dtype);
    let expected = inputs.expected();
    for &implementation in implementations {
        poison(recurrence, heads, dtype);
        let found = inputs.found(&device(), dtype, implementation);
        println!(
            "{implementation:?} {dtype:?} {heads:?}: {}",
            listed(found.errors(&expected))
        );
        found.assert_close(&expected, forward, backward);
        found.assert_zero_padding(recurrence);
        for (name, values) in [
            ("output", values(&found.output)),
            ("log_decay", values(&found.log_decay)),
        ] {
            assert!(values.iter().all(|it| it.is_finite()), "{name}");
        }
    }
}

type NamedErrors = Vec<(&'static str, f64)>;

fn listed((mut outputs, gradients): (NamedErrors, NamedErrors)) -> String {
    outputs.extend(gradients);
    let texts = outputs
        .iter()
        .map(|(name, error)| format!("{name} {error:.1e}"));
    texts.collect::<Vec<_>>().join(", ")
}
