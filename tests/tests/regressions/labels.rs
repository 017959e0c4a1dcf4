//! The target and weight of each row's predictions, derived from the gradients of the logits in
//! plain loops. `tree-pack` has the same tests on the host, without tensors.

use proptest::prelude::*;
use tree_pack::{Aggregation, LossForm, Objective, Trajectory};
use tree_training_tests::device::test_dtypes;
use tree_training_tests::equality::LOSSES;
use tree_training_tests::forest::{ForestShape, cases, forests};
use tree_training_tests::logits::{WeightedPrediction, check_logit_gradients};
use tree_training_tests::oracle::loss::prediction_weights;
use tree_training_tests::packing::Packing;

const VOCABULARY: usize = 40;

fn trajectory(tokens: &[u32]) -> Trajectory {
    Trajectory::new("task", "rollout", tokens.to_vec(), vec![true; tokens.len()])
}

/// Checks the sum over all predictions, merged and unmerged.
fn check_sum(trajectories: &[Trajectory], expected: &[(&[u32], f64)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|&(tokens, weight)| WeightedPrediction::new(tokens, weight))
        .collect();
    for form in [LossForm::LogLikelihood, LossForm::PerTrajectory] {
        let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::Sum);
        let step = Packing::ONE_PACK.pack_for(trajectories, objective, aggregation, form);
        for dtype in test_dtypes() {
            check_logit_gradients(&step, VOCABULARY, &expected, dtype);
        }
    }
}

/// Four samples share three sampled tokens, which count once or four times, as selected.
#[test]
fn shared_sampled_tokens_count_as_chosen() {
    let trajectories: Vec<_> = (0..4)
        .map(|sample| {
            let mut trajectory = trajectory(&[1, 2, 10, 11, 12, 20 + sample, 30]);
            trajectory.loss_mask[..2].fill(false);
            trajectory
        })
        .collect();
    // Trained: 5 tokens in each of 4 samples, and 3 + 4 * 2 tree tokens.
    let cases = [
        (Objective::PerPath, Aggregation::Sum, 4.0, 1.0),
        (Objective::PerOccurrence, Aggregation::Sum, 4.0, 1.0),
        (Objective::PerPath, Aggregation::SepAvg, 1.0, 0.25),
        (
            Objective::PerPath,
            Aggregation::TokenMean,
            4.0 / 20.0,
            1.0 / 20.0,
        ),
        (
            Objective::PerPath,
            Aggregation::TrajectoryMean,
            4.0 / 20.0,
            1.0 / 20.0,
        ),
        (Objective::Unique, Aggregation::Sum, 1.0, 1.0),
        (
            Objective::Unique,
            Aggregation::UniqueMean,
            1.0 / 11.0,
            1.0 / 11.0,
        ),
    ];
    for (objective, aggregation, shared, own) in cases {
        let mut expected: Vec<_> = (3..=5)
            .map(|length| WeightedPrediction::new(&trajectories[0].tokens[..length], shared))
            .collect();
        for trajectory in &trajectories {
            for length in 6..=7 {
                expected.push(WeightedPrediction::new(&trajectory.tokens[..length], own));
            }
        }
        let form = LossForm::LogLikelihood;
        let step = Packing::ONE_PACK.pack_for(&trajectories, objective, aggregation, form);
        for dtype in test_dtypes() {
            check_logit_gradients(&step, VOCABULARY, &expected, dtype);
        }
    }
}

/// The last token of a trajectory predicts nothing: neither the first token of the next tree of the
/// pack nor that of a sibling.
#[test]
fn last_token_of_a_path_has_no_label() {
    let trajectories = [
        trajectory(&[1, 2, 3]),
        trajectory(&[1, 2, 4, 5]),
        trajectory(&[6]),
        trajectory(&[7, 8]),
    ];
    check_sum(
        &trajectories,
        &[
            (&[1, 2], 2.0),
            (&[1, 2, 3], 1.0),
            (&[1, 2, 4], 1.0),
            (&[1, 2, 4, 5], 1.0),
            (&[7, 8], 1.0),
        ],
    );
}

/// One row before a fork has one target per branch, also if a trajectory ends there.
#[test]
fn first_token_after_a_fork_is_predicted_for_every_branch() {
    let trajectories = [
        &[1, 2, 10][..],
        &[1, 2, 11],
        &[1, 2, 12, 3],
        &[1, 2],
        &[1, 2, 13],
    ];
    check_sum(
        &trajectories.map(trajectory),
        &[
            (&[1, 2], 5.0),
            (&[1, 2, 10], 1.0),
            (&[1, 2, 11], 1.0),
            (&[1, 2, 12], 1.0),
            (&[1, 2, 12, 3], 1.0),
            (&[1, 2, 13], 1.0),
        ],
    );
}

/// Duplicates that are not adjacent, and trajectories that are prefixes of others: each counts
/// fully in any order.
#[test]
fn duplicates_and_prefixes_count_in_any_order() {
    let mut trajectories = [
        &[1, 2, 3, 4][..],
        &[1, 2],
        &[1, 2, 3, 4],
        &[1, 2, 5],
        &[1, 2, 3, 4, 6],
    ]
    .map(trajectory);
    for _ in 0..trajectories.len() {
        check_sum(
            &trajectories,
            &[
                (&[1, 2], 5.0),
                (&[1, 2, 3], 3.0),
                (&[1, 2, 3, 4], 3.0),
                (&[1, 2, 5], 1.0),
                (&[1, 2, 3, 4, 6], 1.0),
            ],
        );
        trajectories.rotate_left(2);
    }
}

/// Three trajectories, one leaf: weights are per trajectory.
#[test]
fn weights_count_trajectories_that_end_at_inner_nodes() {
    let trajectories = [&[1, 2][..], &[1, 2, 3], &[1, 2, 3, 4]].map(trajectory);
    check_sum(
        &trajectories,
        &[(&[1, 2], 3.0), (&[1, 2, 3], 2.0), (&[1, 2, 3, 4], 1.0)],
    );
}

/// A shared token that only some of its trajectories train counts for those.
#[test]
fn masks_belong_to_trajectories_not_to_tree_tokens() {
    let mut trajectories = [(); 3].map(|()| trajectory(&[1, 2, 3]));
    trajectories[0].loss_mask = vec![true, false, true];
    trajectories[1].loss_mask = vec![false, true, true];
    trajectories[2].loss_mask = vec![true, false, false];
    check_sum(&trajectories, &[(&[1, 2], 1.0), (&[1, 2, 3], 2.0)]);
}

proptest! {
    #![proptest_config(cases(64))]

    /// For every objective and aggregation, merged or not, in any packs: each row predicts exactly
    /// the next tokens of the trajectories that train them, with their weights in the loss of the
    /// separate sequences.
    #[test]
    fn predictions_are_those_of_separate_sequences(
        forest in forests(ForestShape::default()),
        packing in Packing::strategy(),
    ) {
        let trajectories = forest.with_disjoint_tasks(13).trajectories();
        for (objective, aggregation) in LOSSES {
            let weights = prediction_weights(&trajectories, objective, aggregation);
            let expected = WeightedPrediction::of_sequences(&trajectories, &weights);
            let unmerged = (objective == Objective::PerOccurrence).then_some(LossForm::PerTrajectory);
            for form in [LossForm::LogLikelihood].into_iter().chain(unmerged) {
                let step = packing.pack_for(&trajectories, objective, aggregation, form);
                for dtype in test_dtypes() {
                    check_logit_gradients(&step, VOCABULARY, &expected, dtype);
                }
            }
        }
    }
}
