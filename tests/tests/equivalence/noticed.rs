//! Tests of the comparison itself: it must detect packs with a single error.

use burn::tensor::DType;
use tree_pack::{Aggregation, Objective, PackedStep, Trajectory};
use tree_training_tests::device::{autodiff_device, test_dtypes};
use tree_training_tests::equality::{StepSetup, compare_packed};
use tree_training_tests::models::{dense_config, random_model};
use tree_training_tests::packing::Packing;
use tree_training_tests::step::Batching;

/// Introduces an error.
type Tampering = fn(&mut PackedStep);

/// Rows 0..3 are the trunk, 3..5 and 5..7 the branches, 7..9 the second tree.
const TAMPERINGS: [(&str, Tampering); 10] = [
    // In the first tree, since a second root at a position other than 0 is refused as a part.
    ("positions are row numbers", |step| {
        step.packs[0].layout.position_ids[5..7].copy_from_slice(&[5, 6]);
    }),
    ("everything before is visible", |step| {
        let layout = &mut step.packs[0].layout;
        layout.subtree_ends = vec![layout.len() as u32; layout.len()];
    }),
    ("a sibling is visible", |step| {
        step.packs[0].layout.subtree_ends[4] = 7
    }),
    ("an ancestor is not visible to the last branch", |step| {
        step.packs[0].layout.subtree_ends[1] = 5;
    }),
    ("a tree sees the one before it", |step| {
        step.packs[0].layout.subtree_ends[6] = 9
    }),
    ("a row has its sibling's token", |step| {
        step.packs[0].layout.tokens[5] = 4
    }),
    ("a prediction is lost", |step| {
        let columns = &mut step.packs[0].occurrences;
        columns.rows.pop();
        columns.targets.pop();
        columns.weights.pop();
        columns.trajectories.pop();
        columns.token_indices.pop();
        columns.multiplicities.pop();
    }),
    ("a prediction has another target", |step| {
        step.packs[0].occurrences.targets[0] = 9
    }),
    ("a prediction is made from the next row", |step| {
        *step.packs[0]
            .occurrences
            .rows
            .last_mut()
            .expect("a prediction") += 1;
    }),
    // Slightly more than the tolerances of f32 and f64.
    ("a prediction weighs a thousandth more", |step| {
        step.packs[0].occurrences.weights[2] *= 1.001;
    }),
];

#[test]
fn wrong_packs_are_noticed() {
    let device = autodiff_device();
    let trajectories = [&[1, 2, 3, 4, 5][..], &[1, 2, 3, 6, 7], &[8, 9]].map(|tokens| {
        Trajectory::new("task", "rollout", tokens.to_vec(), vec![true; tokens.len()])
    });
    for merged in [true, false] {
        let setup = StepSetup {
            packing: Packing::ONE_PACK,
            run: Batching::OneByOne.into(),
            loss: (Objective::PerOccurrence, Aggregation::TokenMean),
            merged,
            seed: 1,
        };
        for dtype in test_dtypes() {
            let model = random_model(&dense_config(17), setup.seed, dtype, &device);
            let packed = setup.pack(&trajectories);
            assert_eq!(packed.packs[0].layout.tokens, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
            let compare = |packed: &PackedStep| {
                compare_packed(&model, &trajectories, packed, &setup, dtype, &device)
            };
            compare(&packed).expect("the packs are right");
            for (what, tamper) in TAMPERINGS {
                let mut wrong = packed.clone();
                tamper(&mut wrong);
                assert_ne!(wrong, packed, "{what}");
                assert!(compare(&wrong).is_err(), "{what}: not noticed in {dtype:?}");
            }
        }
    }
}

/// In f64 the smallest errors are detected.
#[test]
fn tiny_errors_are_noticed_in_f64() {
    let device = autodiff_device();
    let tokens = vec![1, 2, 3, 4];
    let trajectories = [Trajectory::new("task", "rollout", tokens, vec![true; 4])];
    let setup = StepSetup {
        packing: Packing::ONE_PACK,
        run: Batching::OneByOne.into(),
        loss: (Objective::PerPath, Aggregation::Sum),
        merged: true,
        seed: 1,
    };
    for dtype in test_dtypes()
        .into_iter()
        .filter(|&dtype| dtype == DType::F64)
    {
        let model = random_model(&dense_config(17), setup.seed, dtype, &device);
        let mut packed = setup.pack(&trajectories);
        packed.packs[0].occurrences.weights[1] += 1e-8;
        let result = compare_packed(&model, &trajectories, &packed, &setup, dtype, &device);
        assert!(result.is_err(), "a weight that is wrong by 1e-8");
    }
}
