//! Faults that users found in other implementations, each as a test by name.

use burn::tensor::{DType, Tensor, TensorData};
use burn_tree_ssm::Implementation::{Automatic, Generic};
use burn_tree_ssm::TreeRecurrence;

use super::HEADS;
use super::definition::bar_of;
use crate::delta_rule::{Inputs, Results, SLOW, STRONG};
use crate::support::{Forest, computes_in, device, reference_device, values};

fn recurrence(forest: &Forest) -> TreeRecurrence {
    let layout = forest.layout();
    let rows = layout.len();
    TreeRecurrence::from_layouts(&[layout], rows)
}

fn run(inputs: &Inputs) -> Results {
    inputs.found(&device(), DType::F32, Automatic)
}

/// A tensor `[1, N, ..]` with other values in some rows.
fn changed<const D: usize>(
    x: &Tensor<D>,
    rows: impl Fn(usize) -> bool,
    value: impl Fn(f64) -> f64,
) -> Tensor<D> {
    let width = x.dims()[2..].iter().product::<usize>();
    let changed = values(x)
        .into_iter()
        .enumerate()
        .map(|(index, x)| if rows(index / width) { value(x) } else { x })
        .collect();
    let data = TensorData::new::<f64, _>(changed, x.dims());
    Tensor::from_data(data, (&reference_device(), DType::F64))
}

/// Checks that numbers of some rows of `[1, N, ..]` are the same bits.
fn assert_same_rows<const D: usize>(
    name: &str,
    a: &Tensor<D>,
    b: &Tensor<D>,
    rows: impl Fn(usize) -> bool,
) {
    let width = a.dims()[2..].iter().product::<usize>();
    for (index, (a, b)) in values(a).into_iter().zip(values(b)).enumerate() {
        let row = index / width;
        assert!(!rows(row) || a == b, "{name} of row {row}: {a} and {b}");
    }
}

/// State of a sibling, or of a tree packed before, must not arrive: with slow decay it would. Other
/// values in one node change nothing in rows that do not descend from it, to the bit; their
/// gradients change only in its ancestors.
#[test]
fn state_does_not_leak_between_siblings_or_trees() {
    let forest = Forest(vec![
        (None, 5),
        (Some(0), 20),
        (Some(0), 70),
        (Some(2), 3),
        (Some(2), 4),
        (Some(0), 2),
        (None, 30),
        (Some(6), 65),
    ]);
    let recurrence = recurrence(&forest);
    let layout = forest.layout();
    let inputs = Inputs::random(&recurrence, HEADS, SLOW, 1).rounded(DType::F32);
    let base = run(&inputs);
    for node in &layout.segments {
        let node = node.start as usize..node.end as usize;
        let subtree = node.start..layout.subtree_ends[node.start] as usize;
        let in_node = |row: usize| node.contains(&row);
        let other = Inputs {
            query: changed(&inputs.query, in_node, |x| 0.5 - x),
            key: changed(&inputs.key, in_node, |x| 0.25 - x),
            value: changed(&inputs.value, in_node, |x| 3.0 * x + 1.0),
            log_decay: changed(&inputs.log_decay, in_node, |x| 2.0 * x),
            beta: changed(&inputs.beta, in_node, |x| 1.0 - x),
            ..inputs.clone()
        }
        .rounded(DType::F32);
        let found = run(&other);
        let outside = |row: usize| !subtree.contains(&row);
        assert_same_rows("output", &found.output, &base.output, outside);
        // Ancestors are the rows whose subtree holds the node.
        let unrelated = |row: usize| {
            outside(row) && !(row..layout.subtree_ends[row] as usize).contains(&node.start)
        };
        assert_same_rows("gradient of query", &found.query, &base.query, outside);
        assert_same_rows("gradient of key", &found.key, &base.key, unrelated);
        assert_same_rows("gradient of value", &found.value, &base.value, unrelated);
        assert_same_rows("gradient of beta", &found.beta, &base.beta, unrelated);
        assert_same_rows(
            "gradient of log_decay",
            &found.log_decay,
            &base.log_decay,
            unrelated,
        );
        assert!(values(&found.output) != values(&base.output));
    }
}

/// Nothing of what is in padding gets out, and padding gets nothing: zeros, whatever it holds.
#[test]
fn padding_may_hold_anything() {
    let layouts = [
        Forest(vec![(None, 7), (Some(0), 70), (Some(0), 3)]).layout(),
        Forest(vec![(None, 2)]).layout(),
    ];
    let recurrence = TreeRecurrence::from_layouts(&layouts, 90);
    let inputs = Inputs::random(&recurrence, HEADS, SLOW, 2).rounded(DType::F32);
    let in_padding = |row: usize| recurrence.is_padding(row);
    let expected = run(&inputs);
    expected.assert_zero_padding(&recurrence);
    let nothing = |_| f64::NAN;
    let found = run(&Inputs {
        query: changed(&inputs.query, in_padding, nothing),
        key: changed(&inputs.key, in_padding, nothing),
        value: changed(&inputs.value, in_padding, nothing),
        log_decay: changed(&inputs.log_decay, in_padding, nothing),
        beta: changed(&inputs.beta, in_padding, nothing),
        grad_output: changed(&inputs.grad_output, in_padding, nothing),
        ..inputs.clone()
    });
    found.assert_zero_padding(&recurrence);
    found.assert_close(&expected, 0.0, 0.0);
}

/// The decay of a tree's first token scales a state that is zero: its gradient is exactly zero, not
/// a difference of sums.
#[test]
fn the_first_token_gets_no_gate_gradient() {
    let forest = Forest(vec![(None, 150), (Some(0), 20), (None, 3), (Some(2), 80)]);
    let recurrence = recurrence(&forest);
    let inputs = Inputs::random(&recurrence, HEADS, SLOW, 3).rounded(DType::F32);
    let found = values(&run(&inputs).log_decay);
    let heads = found.len() / recurrence.rows();
    for &root in recurrence.roots() {
        let gradient = &found[root as usize * heads..][..heads];
        assert!(
            gradient.iter().all(|&x| x == 0.0),
            "row {root}: {gradient:?}"
        );
    }
    assert!(found.iter().filter(|&&x| x == 0.0).count() <= 2 * heads);
}

/// Every gate gradient by itself: products in less than f32 would be off by far more, and not show
/// in the norm of all.
#[test]
fn gate_gradients_are_precise_row_by_row() {
    let recurrence = recurrence(&Forest(vec![(None, 200), (Some(0), 64), (Some(0), 30)]));
    let inputs = Inputs::random(&recurrence, HEADS, SLOW, 4).rounded(DType::F32);
    let (found, expected) = (run(&inputs), inputs.expected());
    let (found, expected) = (values(&found.log_decay), values(&expected.log_decay));
    let mean = expected.iter().map(|x| x.abs()).sum::<f64>() / expected.len() as f64;
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        // Where positive and negative contributions cancel, relative to a usual gradient.
        let error = (found - expected).abs() / expected.abs().max(0.1 * mean);
        assert!(
            error < 2e-4,
            "number {index}: {found} instead of {expected}"
        );
    }
}

/// Gradients of strong decays by themselves. Little passes such a row beside what stays between the
/// rows above it: sums of both, of which the latter would have to cancel, lose the former.
#[test]
fn gradients_of_strong_decays_are_precise_row_by_row() {
    let nodes = vec![(None, 100), (Some(0), 64), (Some(0), 20), (Some(0), 9)];
    let recurrence = recurrence(&Forest(nodes));
    let inputs = Inputs::random(&recurrence, HEADS, SLOW, 9);
    let is_strong = |row: usize| row % 4 == 3;
    let inputs = Inputs {
        log_decay: changed(&inputs.log_decay, is_strong, |x| x - 12.0),
        ..inputs
    }
    .rounded(DType::F32);
    let (found, expected) = (run(&inputs), inputs.expected());
    let heads = found.log_decay.dims()[2];
    let strong = |x: &Tensor<3>| -> Vec<f64> {
        let numbers = values(x).into_iter().enumerate();
        let of_strong = numbers.filter(|(index, _)| is_strong(index / heads));
        of_strong.map(|(_, number)| number).collect()
    };
    let (found, expected) = (strong(&found.log_decay), strong(&expected.log_decay));
    let mean = expected.iter().map(|x| x.abs()).sum::<f64>() / expected.len() as f64;
    assert!(mean < 1e-4, "of {mean:e}: not strong");
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        // Sums of log decays of up to 16 * 12 are known to 16 * 12 * 2^-24 = 1e-5.
        let error = (found - expected).abs() / expected.abs().max(0.1 * mean);
        assert!(
            error < 2e-4,
            "number {index}: {found:e} instead of {expected:e}"
        );
    }
}

/// A log decay that leaves nothing starts a new sequence, wherever it is in a window, and costs the
/// decays after it none of their digits.
#[test]
fn a_reset_starts_a_new_sequence() {
    let one = Forest(vec![(None, 150)]).layout();
    let two = Forest(vec![(None, 88), (None, 62)]).layout();
    let recurrence = |layout, states: &[_]| {
        TreeRecurrence::from_layouts(&[layout], 150)
            .with_initial_states(states)
            .with_requested_rows(&[149])
    };
    let separate = Inputs::random(&recurrence(two, &[Some(0), None]), HEADS, SLOW, 10);
    let recurrence = recurrence(one, &[Some(0)]);
    for (dtype, lowest, forward, backward) in [
        // Sums that hold a reset are known to 104 * 2^-24 = 6e-6 at each of 62 rows.
        (DType::F32, -1e9, 5e-5, 5e-5),
        (DType::F64, -1e9, 1e-10, 1e-10),
    ] {
        if !computes_in(dtype) {
            continue;
        }
        let separate = separate.clone().rounded(dtype);
        let expected = separate.expected();
        for reset in [lowest, f64::NEG_INFINITY] {
            let inputs = Inputs {
                recurrence: recurrence.clone(),
                log_decay: changed(&separate.log_decay, |row| row == 88, |_| reset),
                ..separate.clone()
            };
            inputs.expected().assert_close(&expected, 1e-14, 1e-14);
            for implementation in [Automatic, Generic] {
                let found = inputs.found(&device(), dtype, implementation);
                let bar = |bar| bar_of(implementation, dtype, bar);
                found.assert_close(&expected, bar(forward), bar(backward));
            }
        }
    }
}

/// Between rows that are not on one path, decays differ by factors that overflow; on a path of
/// strong decays, products of two exponentials would.
#[test]
fn strong_decays_do_not_overflow() {
    let forest = Forest(vec![
        (None, 3),
        (Some(0), 20),
        (Some(0), 30),
        (Some(2), 130),
    ]);
    let recurrence = recurrence(&forest);
    let inputs = Inputs::random(&recurrence, HEADS, STRONG, 5).rounded(DType::F32);
    run(&inputs).assert_close(&inputs.expected(), 1e-5, 2e-5);
    // Sums of 64 log decays of up to 200 are known to 64 * 200 * 2^-24 = 8e-4 in f32.
    let inputs = Inputs::random(&recurrence, HEADS, 200.0, 5).rounded(DType::F32);
    run(&inputs).assert_close(&inputs.expected(), 8e-4, 8e-4);
}

/// Similar keys with almost full strength: the powers of their similarities, whose signed sum is
/// the inverse, reach 10^17 at 64 rows.
#[test]
fn similar_keys() {
    let recurrence = recurrence(&Forest(vec![(None, 130), (Some(0), 50), (Some(0), 64)]));
    let mut inputs = Inputs::random(&recurrence, HEADS, SLOW, 6);
    let key = inputs.key * 0.1 + 1.0;
    inputs.key = key.clone() / key.square().sum_dim(3).sqrt();
    inputs.beta = inputs.beta * 0.1 + 0.9;
    let inputs = inputs.rounded(DType::F32);
    run(&inputs).assert_close(&inputs.expected(), 1e-5, 2e-5);
}

/// The generic form multiplies all rows of a window with each other: products of siblings are left
/// out even where they overflow.
#[test]
fn products_of_siblings_may_overflow() {
    let recurrence = recurrence(&Forest((0..5).map(|_| (None, 1)).collect()));
    let inputs = Inputs::random(&recurrence, HEADS, SLOW, 11);
    let inputs = Inputs {
        query: inputs.query * 1e-20,
        key: inputs.key * 1e20,
        ..inputs
    }
    .rounded(DType::F32);
    let found = inputs.found(&device(), DType::F32, Generic);
    let bar = |bar| bar_of(Generic, DType::F32, bar);
    found.assert_close(&inputs.expected(), bar(1e-5), bar(2e-5));
}

/// Rows of zeros, as a masked token gives them.
#[test]
fn zero_queries_and_keys() {
    let recurrence = recurrence(&Forest(vec![(None, 30), (Some(0), 70), (Some(0), 5)]));
    let inputs = Inputs::random(&recurrence, HEADS, SLOW, 7);
    let zero = |row: usize| row.is_multiple_of(3);
    let inputs = Inputs {
        query: changed(&inputs.query, zero, |_| 0.0),
        key: changed(&inputs.key, zero, |_| 0.0),
        ..inputs
    }
    .rounded(DType::F32);
    run(&inputs).assert_close(&inputs.expected(), 1e-5, 2e-5);
}

/// A node that changes nothing leaves the state of its parent to the bit, as one of no tokens
/// would.
#[test]
fn a_node_that_changes_nothing_passes_the_state() {
    let forest = Forest(vec![(None, 30), (Some(0), 70), (Some(1), 5)]);
    let layout = forest.layout();
    let rows = layout.len();
    let recurrence = TreeRecurrence::from_layouts(&[layout], rows).with_requested_rows(&[29, 99]);
    let inputs = Inputs::random(&recurrence, HEADS, SLOW, 8);
    let idle = |row: usize| (30..100).contains(&row);
    let inputs = Inputs {
        log_decay: changed(&inputs.log_decay, idle, |_| 0.0),
        beta: changed(&inputs.beta, idle, |_| 0.0),
        ..inputs
    }
    .rounded(DType::F32);
    let states = values(&run(&inputs).states.unwrap());
    let (before, after) = states.split_at(states.len() / 2);
    assert_eq!(before, after);
    assert!(before.iter().any(|&x| x != 0.0));
}
