//! What holds for results to the bit.

use crate::delta_rule::{Inputs, SLOW};
use crate::kernels::{alone, forked, kernels};
use crate::support::{device, values};

/// The decay of a state of zeros changes nothing, so its gradient is zero, not a remainder of
/// rounding.
#[test]
fn the_first_decay_of_a_tree_has_no_gradient() {
    let _alone = alone();
    let recurrence = forked();
    let &[first, second] = recurrence.roots() else {
        panic!("two trees");
    };
    for (implementation, dtype, heads) in kernels() {
        let inputs = Inputs::random(&recurrence, heads, SLOW, 3).rounded(dtype);
        let found = inputs.found(&device(), dtype, implementation);
        let gradient = values(&found.log_decay);
        let of_row = |row: u32| &gradient[2 * row as usize..2 * row as usize + 2];
        assert!(of_row(first).iter().all(|&it| it != 0.0), "has a state");
        assert_eq!(of_row(second), [0.0; 2], "{implementation:?}");
    }
}

/// Rows of another branch and of another tree change nothing, not a bit.
#[test]
fn siblings_do_not_matter() {
    let _alone = alone();
    let recurrence = forked();
    for (implementation, dtype, heads) in kernels() {
        let inputs = Inputs::random(&recurrence, heads, SLOW, 3).rounded(dtype);
        let output =
            |inputs: &Inputs| values(&inputs.found(&device(), dtype, implementation).output);
        let before = output(&inputs);
        let row_width = heads.key_heads * heads.group * heads.value_dim;
        for changed in [75usize, 140, 158] {
            let mut other = inputs.clone();
            let row = [0..1, changed..changed + 1];
            other.key = other.key.slice_fill(row.clone(), 0.25);
            other.value = other.value.slice_fill(row, 9.0);
            let after = output(&other);
            let below = changed..recurrence.subtree_ends()[changed] as usize;
            for (at, (before, after)) in before.iter().zip(&after).enumerate() {
                let row = at / row_width;
                if below.contains(&row) {
                    continue;
                }
                assert_eq!(
                    before.to_bits(),
                    after.to_bits(),
                    "{implementation:?}: row {row} with {changed}"
                );
            }
            assert_ne!(before[changed * row_width], after[changed * row_width]);
        }
    }
}

/// The same call gives the same bits.
#[test]
fn results_repeat() {
    let _alone = alone();
    for (implementation, dtype, heads) in kernels() {
        let inputs = Inputs::random(&forked(), heads, SLOW, 5).rounded(dtype);
        let run = || inputs.found(&device(), dtype, implementation);
        let (first, second) = (run(), run());
        let (outputs, gradients) = first.errors(&second);
        for (name, error) in outputs.into_iter().chain(gradients) {
            assert_eq!(error, 0.0, "{implementation:?}: {name}");
        }
    }
}
