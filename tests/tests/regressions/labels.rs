//! Which row predicts which token, and how often it counts.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tree_pack::{Aggregation, LossForm, Objective, Pack, PackedStep, Trajectory};
use tree_training_tests::equality::LOSSES;
use tree_training_tests::forest::{ForestShape, cases, forests};
use tree_training_tests::oracle::loss::prediction_weights;
use tree_training_tests::packing::Packing;

fn trajectory(task: &str, tokens: &[u32]) -> Trajectory {
    Trajectory::new(task, "rollout", tokens.to_vec(), vec![true; tokens.len()])
}

/// Tokens from the root to a row.
fn path_of(pack: &Pack, row: u32) -> Vec<u32> {
    let mut path = Vec::new();
    let mut next = row as i32;
    while let Ok(row) = usize::try_from(next) {
        path.push(pack.layout.tokens[row]);
        next = pack.layout.parents[row];
    }
    path.reverse();
    path
}

/// Total weight of each prediction by task and the tokens up to the target, from the packs.
fn packed_weights(
    step: &PackedStep,
    trajectories: &[Trajectory],
) -> BTreeMap<(String, Vec<u32>), f64> {
    let mut weights = BTreeMap::new();
    for pack in &step.packs {
        let columns = &pack.occurrences;
        for index in 0..columns.len() {
            let mut tokens = path_of(pack, columns.rows[index]);
            tokens.push(columns.targets[index]);
            let source = step.trajectories[columns.trajectories[index] as usize].data_index;
            let task = trajectories[source as usize].task_id.clone();
            *weights.entry((task, tokens)).or_insert(0.0) += columns.weights[index];
        }
    }
    weights
}

/// The same from the separate sequences.
fn separate_weights(
    trajectories: &[Trajectory],
    objective: Objective,
    aggregation: Aggregation,
) -> BTreeMap<(String, Vec<u32>), f64> {
    let rows = prediction_weights(trajectories, objective, aggregation);
    let mut weights = BTreeMap::new();
    for (trajectory, row) in trajectories.iter().zip(rows) {
        for (t, weight) in row
            .into_iter()
            .enumerate()
            .filter(|(_, weight)| *weight != 0.0)
        {
            let key = (
                trajectory.task_id.clone(),
                trajectory.tokens[..=t + 1].to_vec(),
            );
            *weights.entry(key).or_insert(0.0) += weight;
        }
    }
    weights
}

fn assert_equal_weights(
    found: &BTreeMap<(String, Vec<u32>), f64>,
    expected: &BTreeMap<(String, Vec<u32>), f64>,
) {
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    for (key, expected) in expected {
        // Sums of some tens of f64 numbers in another order.
        assert!(
            (found[key] - expected).abs() <= 1e-13 * expected,
            "{key:?} {} {expected}",
            found[key]
        );
    }
}

/// Four samples share three sampled tokens: counted once or four times, as asked.
#[test]
fn shared_sampled_tokens_count_as_chosen() {
    let trajectories: Vec<_> = (0..4)
        .map(|sample| {
            let mut trajectory = trajectory("task", &[1, 2, 10, 11, 12, 20 + sample, 30]);
            trajectory.loss_mask[..2].fill(false);
            trajectory
        })
        .collect();
    // Trained: 5 tokens in each of 4 samples; 3 + 4 * 2 tree tokens.
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
        for form in [LossForm::LogLikelihood, LossForm::PerTrajectory] {
            if objective != Objective::PerOccurrence && form == LossForm::PerTrajectory {
                continue;
            }
            let step = Packing::ONE_PACK.pack_for(&trajectories, objective, aggregation, form);
            let weights = packed_weights(&step, &trajectories);
            for (sample, tokens) in trajectories.iter().map(|t| &t.tokens).enumerate() {
                for length in 3..=7 {
                    let expected = if length <= 5 { shared } else { own };
                    let found = weights[&("task".to_owned(), tokens[..length].to_vec())];
                    assert!(
                        (found - expected).abs() < 1e-15,
                        "{objective:?} {aggregation:?} sample {sample} token {length}: {found}"
                    );
                }
            }
            assert_eq!(weights.len(), 11, "the prompt is not trained");
        }
    }
}

/// The last token of a trajectory predicts nothing: not the first token of the next row of the
/// pack, and not that of a sibling.
#[test]
fn last_token_of_a_path_has_no_label() {
    let trajectories = [
        trajectory("a", &[1, 2, 3]),
        trajectory("a", &[1, 2, 4, 5]),
        trajectory("a", &[6]),
        trajectory("b", &[7, 8]),
    ];
    let step = Packing::ONE_PACK.pack(&trajectories, Objective::PerOccurrence, Aggregation::Sum);
    let [pack] = &step.packs[..] else {
        panic!("one pack")
    };
    for last_of_a_path in [3, 5, 6, 8] {
        let row = pack
            .layout
            .tokens
            .iter()
            .position(|&token| token == last_of_a_path);
        let row = row.expect("a row") as u32;
        assert!(
            !pack.occurrences.rows.contains(&row),
            "the row of token {last_of_a_path}"
        );
    }
    assert_eq!(pack.occurrences.len(), 2 + 3 + 1);
}

/// One row before a fork, one target for each branch: none is lost, also where a trajectory ends
/// there.
#[test]
fn first_token_after_a_fork_is_predicted_for_every_branch() {
    let mut trajectories: Vec<_> = (0..5)
        .map(|branch| trajectory("task", &[1, 2, 10 + branch, 3]))
        .collect();
    trajectories.push(trajectory("task", &[1, 2]));
    let step = Packing::ONE_PACK.pack(&trajectories, Objective::PerOccurrence, Aggregation::Sum);
    let columns = &step.packs[0].occurrences;
    let at_fork: BTreeSet<u32> = (0..columns.len())
        .filter(|&index| columns.rows[index] == 1)
        .map(|index| columns.targets[index])
        .collect();
    assert_eq!(at_fork, (10..15).collect());
}

/// Equal trajectories that are not neighbours, and trajectories that begin others: in all orders,
/// each counts fully.
#[test]
fn duplicates_and_prefixes_count_in_any_order() {
    let trajectories = [
        trajectory("task", &[1, 2, 3, 4]),
        trajectory("task", &[1, 2]),
        trajectory("task", &[1, 2, 3, 4]),
        trajectory("task", &[1, 2, 5]),
        trajectory("task", &[1, 2, 3, 4, 6]),
    ];
    let aggregation = Aggregation::SepAvg;
    let expected = separate_weights(&trajectories, Objective::PerPath, aggregation);
    let fifth = 1.0 / 5.0;
    assert!((expected[&("task".to_owned(), vec![1, 2])] - 5.0 * fifth).abs() < 1e-15);
    let mut orders = 0;
    for_each_permutation(&mut [0, 1, 2, 3, 4], 0, &mut |order| {
        let ordered: Vec<_> = order
            .iter()
            .map(|&index| trajectories[index].clone())
            .collect();
        for form in [LossForm::LogLikelihood, LossForm::PerTrajectory] {
            let step =
                Packing::ONE_PACK.pack_for(&ordered, Objective::PerOccurrence, aggregation, form);
            assert_eq!(step.packs[0].layout.len(), 6);
            assert_equal_weights(&packed_weights(&step, &ordered), &expected);
        }
        orders += 1;
    });
    assert_eq!(orders, 120);
}

fn for_each_permutation(items: &mut [usize], fixed: usize, visit: &mut impl FnMut(&[usize])) {
    if fixed == items.len() {
        visit(items);
        return;
    }
    for index in fixed..items.len() {
        items.swap(fixed, index);
        for_each_permutation(items, fixed + 1, visit);
        items.swap(fixed, index);
    }
}

/// Three trajectories, one leaf: weights are by trajectory.
#[test]
fn weights_count_trajectories_that_end_at_inner_nodes() {
    let trajectories = [
        trajectory("task", &[1, 2]),
        trajectory("task", &[1, 2, 3]),
        trajectory("task", &[1, 2, 3, 4]),
    ];
    let (objective, aggregation) = (Objective::PerPath, Aggregation::SepAvg);
    let form = LossForm::LogLikelihood;
    let step = Packing::ONE_PACK.pack_for(&trajectories, objective, aggregation, form);
    let columns = &step.packs[0].occurrences;
    assert_eq!(columns.rows, [0, 1, 2]);
    for (found, expected) in columns
        .weights
        .iter()
        .zip([3.0 / 3.0, 2.0 / 3.0, 1.0 / 3.0])
    {
        assert!((found - expected).abs() < 1e-15, "{found} {expected}");
    }
}

/// A shared token that only some of its trajectories train counts for those.
#[test]
fn masks_belong_to_trajectories_not_to_tree_tokens() {
    let mut trajectories = vec![trajectory("task", &[1, 2, 3]); 3];
    trajectories[0].loss_mask = vec![true, false, true];
    trajectories[1].loss_mask = vec![false, true, true];
    trajectories[2].loss_mask = vec![true, true, false];
    let form = LossForm::LogLikelihood;
    let weights = |objective, aggregation| {
        let step = Packing::ONE_PACK.pack_for(&trajectories, objective, aggregation, form);
        step.packs[0].occurrences.weights.clone()
    };
    assert_eq!(weights(Objective::PerPath, Aggregation::Sum), [2.0, 2.0]);
    assert_eq!(
        weights(Objective::PerPath, Aggregation::TokenMean),
        [0.5, 0.5]
    );
    assert_eq!(
        weights(Objective::Unique, Aggregation::UniqueMean),
        [0.5, 0.5]
    );
}

proptest! {
    #![proptest_config(cases(200))]

    /// Every prediction of every trajectory is there once, made by the row that ends the tokens
    /// before it, with the token after them as its target.
    #[test]
    fn every_target_is_the_next_token_of_its_trajectory(
        forest in forests(ForestShape::default()),
        packing in Packing::strategy(),
        shared in any::<bool>(),
    ) {
        let trajectories = forest.trajectories();
        let packing = Packing { shared, ..packing };
        let step = packing.pack(&trajectories, Objective::PerOccurrence, Aggregation::Sum);
        let mut seen = BTreeSet::new();
        for pack in &step.packs {
            let columns = &pack.occurrences;
            for index in 0..columns.len() {
                let step_index = columns.trajectories[index] as usize;
                let source = step.trajectories[step_index].data_index as usize;
                let token = columns.token_indices[index] as usize;
                let tokens = &trajectories[source].tokens;
                prop_assert_eq!(path_of(pack, columns.rows[index]), &tokens[..token]);
                prop_assert_eq!(columns.targets[index], tokens[token]);
                prop_assert!(seen.insert((source, token)), "twice: {:?}", (source, token));
            }
        }
        let expected: BTreeSet<_> = trajectories
            .iter()
            .enumerate()
            .flat_map(|(source, trajectory)| {
                (1..trajectory.len()).filter(|&t| trajectory.loss_mask[t]).map(move |t| (source, t))
            })
            .collect();
        prop_assert_eq!(seen, expected);
    }

    /// For every objective and aggregation, merged or not, shared or not, in any packs: a
    /// prediction has the weight that it has in the loss of the separate sequences.
    #[test]
    fn weights_equal_those_of_separate_sequences(
        forest in forests(ForestShape::default()),
        packing in Packing::strategy(),
        shared in any::<bool>(),
    ) {
        let trajectories = forest.trajectories();
        let packing = Packing { shared, ..packing };
        for (objective, aggregation) in LOSSES {
            let expected = separate_weights(&trajectories, objective, aggregation);
            for form in [LossForm::LogLikelihood, LossForm::PerToken, LossForm::PerTrajectory] {
                let merges = objective != Objective::PerOccurrence;
                if merges && form == LossForm::PerTrajectory {
                    continue;
                }
                let step = packing.pack_for(&trajectories, objective, aggregation, form);
                assert_equal_weights(&packed_weights(&step, &trajectories), &expected);
            }
        }
    }
}
