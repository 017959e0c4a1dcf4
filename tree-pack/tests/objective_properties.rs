//! Compares packed losses of random trajectories with those of separate sequences.

mod reference;

use std::collections::BTreeMap;

use proptest::prelude::*;
use reference::{packed_loss, predictions, prefix, separate_loss, trajectories};
use tree_pack::{
    Aggregation, LossForm, Objective, PackError, PackOptions, Partitioning, PrefixForest,
    Trajectory, build_forests, flat_forests, pack_step,
};

const AGGREGATIONS: [Aggregation; 8] = [
    Aggregation::Sum,
    Aggregation::SepAvg,
    Aggregation::TrajectoryMean,
    Aggregation::TokenMean,
    Aggregation::WeightedTokenMean,
    Aggregation::UniqueMean,
    Aggregation::ConstantLength(11.0),
    Aggregation::Constant(7.5),
];

const LOSSES: [LossForm; 4] = [
    LossForm::LogLikelihood,
    LossForm::AdvantageWeighted,
    LossForm::PerToken,
    LossForm::PerTrajectory,
];

const OBJECTIVES: [Objective; 3] = [
    Objective::PerPath,
    Objective::PerOccurrence,
    Objective::Unique,
];

fn is_defined(objective: Objective, aggregation: Aggregation, loss: LossForm) -> bool {
    use Aggregation::{Constant, ConstantLength, SepAvg, Sum, UniqueMean};
    match objective {
        Objective::Unique => {
            loss != LossForm::PerTrajectory
                && matches!(
                    aggregation,
                    Sum | SepAvg | UniqueMean | Constant(_) | ConstantLength(_)
                )
        }
        _ => aggregation != UniqueMean,
    }
}

/// The first prediction that differs from an earlier one of the same prefix in an input of the
/// loss: (earlier trajectory, later trajectory, token index), by task, trajectory and token.
fn first_difference(trajectories: &[Trajectory], loss: LossForm) -> Option<(usize, usize, usize)> {
    let mut tasks: Vec<&str> = Vec::new();
    for trajectory in trajectories {
        if !tasks.contains(&trajectory.task_id.as_str()) {
            tasks.push(&trajectory.task_id);
        }
    }
    for task in tasks {
        let mut first = BTreeMap::new();
        for (number, index) in predictions(trajectories, Objective::PerOccurrence) {
            let own = &trajectories[number];
            if own.task_id != task {
                continue;
            }
            let inputs = |number: usize| {
                let own = &trajectories[number];
                (
                    own.advantage_of(index),
                    own.old_log_prob_of(index),
                    own.ref_log_prob_of(index),
                    own.sampling_log_prob_of(index),
                )
            };
            let earlier = *first.entry(prefix(own, index)).or_insert(number);
            let differs = match loss {
                LossForm::LogLikelihood | LossForm::AdvantageWeighted => false,
                LossForm::PerToken => inputs(earlier) != inputs(number),
                LossForm::PerTrajectory => earlier != number,
            };
            if differs {
                return Some((earlier, number, index));
            }
        }
    }
    None
}

/// A budget somewhere between the largest tree and all of them.
fn budget(forests: &[PrefixForest], part: f64) -> usize {
    let sizes = forests
        .iter()
        .flat_map(|forest| forest.trees().iter().map(|tree| tree.rows.len()));
    let (largest, sum) = sizes.fold((1, 0), |(max, sum), size| (size.max(max), size + sum));
    largest + ((sum - largest.min(sum)) as f64 * part) as usize
}

proptest! {
    // Each case packs all 192 combinations.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The step has the loss of the separate sequences for every defined objective, aggregation and
    /// loss, merged or flat, for every distribution of trees over packs. Merging is refused exactly
    /// where it would change the loss.
    ///
    /// Tolerance: sums of at most a few hundred f64 terms of order 1, in another order.
    #[test]
    fn packs_have_the_loss_of_separate_sequences(
        trajectories in trajectories(8),
        part in 0.0..1.0,
    ) {
        let forests = build_forests(&trajectories).unwrap();
        let flat = flat_forests(&trajectories).unwrap();
        for objective in OBJECTIVES {
            for aggregation in AGGREGATIONS {
                for loss in LOSSES {
                    let options = |forests| PackOptions {
                        token_budget: budget(forests, part),
                        pad_to_multiple: 1,
                        objective,
                        aggregation,
                        loss,
                        partitioning: Partitioning::Refuse,
                        ranks: 1,
                    };
                    let merged = pack_step(&trajectories, &forests, &options(&forests));
                    let unshared = pack_step(&trajectories, &flat, &options(&flat));
                    if !is_defined(objective, aggregation, loss) {
                        prop_assert!(matches!(merged, Err(PackError::Objective(_))));
                        prop_assert!(matches!(unshared, Err(PackError::Objective(_))));
                        continue;
                    }
                    let expected = separate_loss(&trajectories, objective, aggregation, loss);
                    let tolerance = 1e-11 * (1.0 + expected.abs());
                    let close = |found: f64| (found - expected).abs() <= tolerance;
                    let unshared = unshared.unwrap();
                    prop_assert!(
                        close(packed_loss(&unshared, loss)),
                        "flat {options:?}",
                        options = options(&flat)
                    );

                    let differs = match objective {
                        Objective::Unique => None,
                        _ => first_difference(&trajectories, loss),
                    };
                    if let (Objective::PerPath, Some((earlier, later, index))) =
                        (objective, differs)
                    {
                        let Err(PackError::NotMergeable { first, second, .. }) = merged else {
                            return Err(TestCaseError::fail(format!("merged: {merged:?}")));
                        };
                        prop_assert_eq!((first.data_index, first.token_index), (earlier, index));
                        prop_assert_eq!((second.data_index, second.token_index), (later, index));
                        continue;
                    }
                    let merged = merged.unwrap();
                    prop_assert_eq!(merged.merged, differs.is_none());
                    prop_assert!(
                        close(packed_loss(&merged, loss)),
                        "{options:?}",
                        options = options(&forests)
                    );
                    let packs = merged.packs.iter();
                    let counts = packs.flat_map(|pack| &pack.occurrences.multiplicities);
                    let original = predictions(&trajectories, objective).len();
                    prop_assert_eq!(counts.sum::<u32>() as usize, original);
                    let rows = merged.totals.rows;
                    let totals = tree_pack::StepTotals { rows, ..unshared.totals };
                    prop_assert_eq!(merged.totals, totals);
                }
            }
        }
    }

}

proptest! {
    #[test]
    fn occurrences_are_the_original_predictions(trajectories in trajectories(10)) {
        for build in [build_forests, flat_forests] {
            let forests = build(&trajectories).unwrap();
            let options = PackOptions {
                loss: LossForm::PerTrajectory,
                ..PackOptions::new(budget(&forests, 0.3))
            };
            let step = pack_step(&trajectories, &forests, &options).unwrap();
            let mut found = Vec::new();
            for pack in &step.packs {
                let paths = reference::row_paths(&pack.layout);
                let columns = &pack.occurrences;
                prop_assert!(columns.rows.is_sorted());
                for entry in 0..columns.len() {
                    let number = columns.trajectories[entry] as usize;
                    let data_index = step.trajectories[number].data_index as usize;
                    let index = columns.token_indices[entry] as usize;
                    let own = &trajectories[data_index];
                    prop_assert_eq!(&paths[columns.rows[entry] as usize], &own.tokens[..index]);
                    prop_assert_eq!(columns.targets[entry], own.tokens[index]);
                    let input = |column: &Option<Vec<f32>>| {
                        column.as_ref().map(|values| values[entry])
                    };
                    prop_assert_eq!(input(&columns.advantages), own.advantage_of(index));
                    prop_assert_eq!(input(&columns.old_log_probs), own.old_log_prob_of(index));
                    prop_assert_eq!(input(&columns.ref_log_probs), own.ref_log_prob_of(index));
                    let sampling = input(&columns.sampling_log_probs);
                    prop_assert_eq!(sampling, own.sampling_log_prob_of(index));
                    prop_assert_eq!(columns.multiplicities[entry], 1);
                    found.push((data_index, index));
                }
            }
            found.sort_unstable();
            prop_assert_eq!(found, predictions(&trajectories, Objective::PerOccurrence));
            for entry in &step.trajectories {
                let own = &trajectories[entry.data_index as usize];
                prop_assert_eq!(entry.trained_tokens as usize, own.trained_tokens());
            }
        }
    }

    #[test]
    fn packs_hold_whole_trees_within_the_budget(
        trajectories in trajectories(12),
        part in 0.0..1.0,
        multiple in 1usize..70,
    ) {
        let forests = build_forests(&trajectories).unwrap();
        let options = PackOptions {
            pad_to_multiple: multiple,
            ..PackOptions::new(budget(&forests, part))
        };
        let step = pack_step(&trajectories, &forests, &options).unwrap();
        prop_assert_eq!(&step, &pack_step(&trajectories, &forests, &options).unwrap());
        let mut rows = 0;
        let mut trees = 0;
        for pack in &step.packs {
            prop_assert_eq!(pack.layout.validate(), Ok(()));
            prop_assert!(pack.layout.len() <= options.token_budget && !pack.layout.is_empty());
            prop_assert_eq!(pack.padded_len, pack.layout.len().next_multiple_of(multiple));
            let roots = pack.layout.parents.iter().filter(|&&parent| parent == -1).count();
            prop_assert_eq!(pack.task_ids.len(), roots);
            rows += pack.layout.len();
            trees += roots;
        }
        let expected = reference::prefixes(&trajectories);
        prop_assert_eq!(rows, expected.len());
        // No two packs fit into one.
        let mut sizes: Vec<usize> = step.packs.iter().map(|pack| pack.layout.len()).collect();
        sizes.sort_unstable();
        prop_assert!(sizes.len() < 2 || sizes[0] + sizes[1] > options.token_budget);
        prop_assert_eq!(trees, expected.keys().filter(|(_, path)| path.len() == 1).count());
    }
}
