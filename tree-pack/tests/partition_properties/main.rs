//! Compares partitioned trees with whole ones: the same rows, paths and predictions, each in one
//! pack, for every budget.

mod examples;
#[path = "../reference/mod.rs"]
mod reference;

use proptest::prelude::*;
use reference::{Prefix, past_keys, paths_of, prefixes, trajectories};
use tree_pack::{
    LossForm, PackError, PackOptions, PackedStep, Partitioning, PrefixForest, Trajectory,
    build_forests, flat_forests, pack_step,
};

const MODES: [Partitioning; 2] = [Partitioning::Connected, Partitioning::Shared];

/// Every prediction, as the path of its row and all its columns, in a fixed order.
fn predictions_of(step: &PackedStep) -> Vec<String> {
    let paths = paths_of(step);
    let mut all = Vec::new();
    for (pack, paths) in step.packs.iter().zip(&paths) {
        let columns = &pack.occurrences;
        assert!(columns.rows.is_sorted());
        for entry in 0..columns.len() {
            let input = |column: &Option<Vec<f32>>| column.as_ref().map(|values| values[entry]);
            all.push(format!(
                "{:?} {} {:?} {} {} {:?} {:?} {:?}",
                paths[columns.rows[entry] as usize],
                columns.targets[entry],
                columns.weights[entry],
                columns.trajectories[entry],
                columns.token_indices[entry],
                input(&columns.advantages),
                input(&columns.old_log_probs),
                input(&columns.ref_log_probs),
            ));
        }
    }
    all.sort();
    all
}

/// Number of trajectories through each path; repeated rows count once.
fn counts_of(step: &PackedStep) -> Vec<(Prefix, u32)> {
    let mut counts = Vec::new();
    for (pack, paths) in step.packs.iter().zip(paths_of(step)) {
        assert_eq!(pack.trajectory_counts.len(), paths.len());
        counts.extend(
            paths
                .into_iter()
                .zip(pack.trajectory_counts.iter().copied()),
        );
    }
    counts.retain(|&(_, count)| count > 0);
    counts.sort();
    counts
}

/// Checks the guarantees of a partitioned step beyond [`PackedStep::validate`].
fn check(step: &PackedStep, options: &PackOptions) -> Result<(), TestCaseError> {
    prop_assert_eq!(step.validate(), Ok(()));
    let paths = paths_of(step);
    for (number, pack) in step.packs.iter().enumerate() {
        let layout = &pack.layout;
        prop_assert!(!layout.is_empty() && layout.len() <= options.token_budget);
        prop_assert_eq!(
            pack.padded_len,
            layout.len().next_multiple_of(options.pad_to_multiple)
        );
        let roots = layout.roots().count();
        if pack.gateway.is_some() && options.partitioning == Partitioning::Connected {
            prop_assert_eq!(roots, 1, "a connected part has one root");
        }
        let keys = past_keys(pack);
        let mut pairs = 0;
        for query in 0..layout.len() {
            let (task, path) = &paths[number][query];
            prop_assert_eq!(layout.position_ids[query] as usize + 1, path.len());
            // The keys that the row sees: past keys, then rows of its own pack, outermost first.
            let past = keys
                .iter()
                .filter(|(_, rows)| rows.contains(&(query as u32)));
            let past = past.map(|&((owner, row), _)| &paths[owner][row as usize]);
            let own = (0..=query).filter(|&key| query < layout.subtree_ends[key] as usize);
            let own = own.map(|key| &paths[number][key]);
            let seen: Vec<&Prefix> = past.chain(own).collect();
            let on_path: Vec<Prefix> = (1..=path.len())
                .map(|length| (task.clone(), path[..length].to_vec()))
                .collect();
            prop_assert_eq!(
                &seen,
                &on_path.iter().collect::<Vec<_>>(),
                "pack {} row {}",
                number,
                query
            );
            pairs += seen.len() as u64;
        }
        prop_assert_eq!(layout.visible_pairs(), pairs);
        if let Some(gateway) = &pack.gateway {
            prop_assert!((gateway.parent as usize) < number);
            prop_assert_eq!(gateway.past_keys(), keys.len());
            prop_assert!(
                keys.iter().all(|(_, rows)| !rows.is_empty()),
                "no key is in vain"
            );
            for run in &gateway.runs {
                let (owner, row) = (run.pack as usize, run.rows.start as usize);
                prop_assert_eq!(run.position, step.packs[owner].layout.position_ids[row]);
            }
            let own: u64 = layout
                .roots()
                .flat_map(|root| root.clone().map(move |row| (root.start, row)))
                .map(|(root, row)| {
                    let above = layout.position_ids[root as usize];
                    u64::from(layout.position_ids[row as usize] - above) + 1
                })
                .sum();
            prop_assert_eq!(gateway.visible_pairs() + own, pairs);
        }
    }
    Ok(())
}

fn largest_tree(forests: &[PrefixForest]) -> usize {
    let trees = forests.iter().flat_map(PrefixForest::trees);
    trees.map(|tree| tree.rows.len()).max().unwrap_or(1)
}

/// Budgets from one token to everything, denser where trees are small.
fn budgets(forests: &[PrefixForest]) -> Vec<usize> {
    let largest = largest_tree(forests);
    let mut budgets: Vec<usize> = (1..=largest.min(6)).collect();
    budgets.extend([
        largest / 7,
        largest / 3,
        largest / 2,
        largest - 1,
        largest,
        2 * largest,
    ]);
    budgets.retain(|&budget| budget > 0);
    budgets.sort_unstable();
    budgets.dedup();
    budgets
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Rows, paths, visibility and predictions are those of the whole trees: merged and flat,
    /// several tasks and roots, duplicates, strict prefixes, long nodes, padding.
    #[test]
    fn parts_are_the_whole(
        trajectories in trajectories(7),
        flat in any::<bool>(),
        pad_to_multiple in 1usize..9,
        loss in prop::sample::select(vec![
            LossForm::LogLikelihood, LossForm::PerToken, LossForm::PerTrajectory,
        ]),
    ) {
        let build = if flat { flat_forests } else { build_forests };
        let forests = build(&trajectories).unwrap();
        let whole = PackOptions {
            loss,
            pad_to_multiple,
            ..PackOptions::new(largest_tree(&forests))
        };
        let whole = pack_step(&trajectories, &forests, &whole).unwrap();
        let mut rows: Vec<Prefix> = paths_of(&whole).concat();
        rows.sort();
        if !flat {
            prop_assert_eq!(&rows, &prefixes(&trajectories).into_keys().collect::<Vec<_>>());
        }
        let predictions = predictions_of(&whole);
        let counts = counts_of(&whole);
        for (path, count) in &counts {
            let through = |own: &&Trajectory| {
                own.task_id == path.0 && own.tokens.starts_with(&path.1)
            };
            let expected = if flat { 1 } else { trajectories.iter().filter(through).count() };
            prop_assert_eq!(*count as usize, expected);
        }
        for token_budget in budgets(&forests) {
            let mut packs = Vec::new();
            for partitioning in MODES.into_iter().chain([Partitioning::PerNode]) {
                let options = PackOptions {
                    loss, pad_to_multiple, partitioning, ..PackOptions::new(token_budget)
                };
                let step = pack_step(&trajectories, &forests, &options).unwrap();
                check(&step, &options)?;
                let mut own: Vec<Prefix> = paths_of(&step).concat();
                own.sort();
                prop_assert_eq!(&own, &rows, "every row is in one pack");
                prop_assert_eq!(&predictions_of(&step), &predictions);
                prop_assert_eq!(step.totals, whole.totals);
                prop_assert_eq!(&step.trajectories, &whole.trajectories);
                prop_assert_eq!(step.merged, whole.merged);
                let again = pack_step(&trajectories, &forests, &options).unwrap();
                prop_assert_eq!(&step, &again, "the same arguments give the same packs");
                prop_assert_eq!(&counts_of(&step), &counts);
                packs.push(step.packs.len());
            }
            prop_assert!(packs[1] <= packs[0], "shared parts are not more: {:?}", packs);
        }
    }

    /// Smaller trees that repeat prefixes also make every prediction once; a path that does not fit
    /// is an error.
    #[test]
    fn smaller_trees_repeat_rows_but_no_prediction(
        trajectories in trajectories(7),
        loss in prop::sample::select(vec![LossForm::LogLikelihood, LossForm::PerTrajectory]),
    ) {
        let forests = build_forests(&trajectories).unwrap();
        let whole = PackOptions { loss, ..PackOptions::new(largest_tree(&forests)) };
        let whole = pack_step(&trajectories, &forests, &whole).unwrap();
        let longest = trajectories.iter().map(Trajectory::len).max().unwrap_or(0);
        for token_budget in budgets(&forests) {
            let options = PackOptions {
                loss,
                partitioning: Partitioning::RepeatedPrefixes,
                ..PackOptions::new(token_budget)
            };
            let step = match pack_step(&trajectories, &forests, &options) {
                Ok(step) => step,
                Err(error) => {
                    prop_assert!(matches!(error, PackError::PathOverBudget { .. }), "{error}");
                    prop_assert!(longest > token_budget);
                    continue;
                }
            };
            prop_assert!(longest <= token_budget);
            check(&step, &options)?;
            prop_assert!(step.packs.iter().all(|pack| pack.gateway.is_none()));
            let mut rows: Vec<Prefix> = paths_of(&step).concat();
            rows.sort();
            rows.dedup();
            prop_assert_eq!(rows, prefixes(&trajectories).into_keys().collect::<Vec<_>>());
            prop_assert_eq!(&predictions_of(&step), &predictions_of(&whole));
            prop_assert_eq!(&counts_of(&step), &counts_of(&whole));
        }
    }
}
