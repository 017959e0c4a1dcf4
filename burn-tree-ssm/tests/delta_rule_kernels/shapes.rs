//! Trees, windows, heads and dtypes against the definition.

use burn::tensor::DType;
use burn_tree_ssm::Implementation::{Accelerated, Portable};
use burn_tree_ssm::TreeRecurrence;
use proptest::prelude::*;
use tree_pack::TreeLayout;

use crate::comparison::{DTYPES, compare, compare_all, poison};
use crate::delta_rule::{Heads, Inputs, SLOW, STRONG};
use crate::kernels::{alone, cube_device, forked, heads};
use crate::support::{Batch, Forest, batches, cases, device};

const ALL: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn kernels_equal_the_definition(
        batch in batches(10),
        heads in prop::sample::select(vec![heads(1, 2, 8, 8), heads(2, 1, 9, 7), heads(1, 3, 4, 70)]),
        decay in prop::sample::select(vec![SLOW, STRONG]),
    ) {
        let _alone = alone();
        compare(&batch.recurrence(), heads, decay, &[DType::F32]);
    }
}

/// Key dimensions of one to four tiles, and others than multiples of 16.
#[test]
fn head_dimensions() {
    let _alone = alone();
    for (key_dim, value_dim) in [(1, 1), (80, 80), (128, 33), (200, 20)] {
        compare(
            &forked(),
            heads(1, 2, key_dim, value_dim),
            SLOW,
            &[DType::F32],
        );
    }
}

#[test]
fn narrow_dtypes() {
    let _alone = alone();
    for decay in [SLOW, STRONG] {
        compare(
            &forked(),
            heads(1, 2, 24, 40),
            decay,
            &[DType::F16, DType::BF16],
        );
    }
}

/// Single value heads and groups, keys and values of both sizes of the kernels with matrix
/// instructions; short siblings that share a cube, bundles of them, windows of one to four row
/// tiles.
fn matrix_shapes() -> [(TreeRecurrence, Heads, f64); 4] {
    let leaves = [40, 40, 40, 30, 20, 60, 33, 17, 16, 64, 1, 130, 5];
    let nodes = std::iter::once((None, 70)).chain(leaves.map(|length| (Some(0), length)));
    let bushy = Batch::of(Forest(nodes.collect()), 64).recurrence();
    [
        (forked(), heads(1, 3, 128, 64), SLOW),
        (forked(), heads(1, 1, 64, 128), STRONG),
        (bushy.clone(), heads(2, 2, 64, 64), SLOW),
        (bushy, heads(2, 2, 128, 128), SLOW),
    ]
}

#[test]
fn shapes_of_matrix_instructions() {
    let _alone = alone();
    for (recurrence, heads, decay) in &matrix_shapes()[..3] {
        compare(recurrence, *heads, *decay, &[DType::F16, DType::BF16]);
    }
}

/// On devices that have the instructions: these kernels alone, which compile in seconds.
#[test]
#[ignore = "needs a device with tensor cores"]
fn matrix_instructions() {
    let _alone = alone();
    for (recurrence, heads, decay) in matrix_shapes() {
        for dtype in [DType::F16, DType::BF16] {
            compare_all(&recurrence, heads, decay, dtype, &[Accelerated]);
        }
    }
}

/// What to run first on another device: all dtypes, at the head dimension of models.
#[test]
#[ignore = "takes minutes on a processor"]
fn chosen_few() {
    let _alone = alone();
    let start = std::time::Instant::now();
    for (dtype, ..) in DTYPES {
        compare(&forked(), heads(1, 2, 128, 128), SLOW, &[dtype]);
        println!("{dtype:?}: {:.1} s", start.elapsed().as_secs_f64());
    }
}

/// A node of 130 rows at any number of rows of its windows.
#[test]
fn window_sizes() {
    let _alone = alone();
    for window_rows in [1, 2, 15, 16, 17, 33, 64] {
        let forest = Forest(vec![(None, 130), (Some(0), 65), (Some(0), 2)]);
        let recurrence = Batch::of(forest, window_rows).recurrence();
        compare(&recurrence, heads(1, 1, 8, 8), SLOW, &[DType::F32]);
    }
}

#[test]
fn one_row() {
    let _alone = alone();
    let recurrence = Batch::of(Forest(vec![(None, 1)]), 64).recurrence();
    compare(&recurrence, heads(1, 2, 8, 8), SLOW, &ALL);
    let recurrence = recurrence
        .with_initial_states(&[Some(0)])
        .with_requested_rows(&[0]);
    compare(&recurrence, heads(1, 2, 8, 8), SLOW, &ALL);
}

/// Nothing but padding: zeros, from no window at all.
#[test]
fn no_trees() {
    let _alone = alone();
    if cube_device().is_none() {
        return;
    }
    let recurrence = TreeRecurrence::from_layouts(&[TreeLayout::default()], 3);
    let inputs = Inputs::random(&recurrence, heads(1, 2, 8, 8), SLOW, 3).rounded(DType::F32);
    poison(&recurrence, heads(1, 2, 8, 8), DType::F32);
    let found = inputs.found(&device(), DType::F32, Portable);
    found.assert_zero_padding(&recurrence);
}

/// Without initial states, and with one for every other tree.
#[test]
fn many_tiny_trees() {
    let _alone = alone();
    let trees: Vec<_> = (0..300).map(|tree| (None, 1 + tree % 3)).collect();
    let recurrence = Batch::of(Forest(trees), 64).recurrence();
    compare(&recurrence, heads(1, 1, 8, 8), SLOW, &[DType::F32]);
    let states: Vec<_> = (0..300)
        .map(|tree| (tree % 2 == 0).then_some(tree / 2))
        .collect();
    let recurrence = recurrence.with_initial_states(&states);
    compare(&recurrence, heads(1, 1, 8, 8), SLOW, &[DType::F32]);
}
