//! Trees in parts against the same trees whole: the same rows, paths and predictions, each in one
//! pack, whatever the budget.

mod reference;

use proptest::prelude::*;
use reference::{Prefix, past_keys, paths_of, predictions, prefixes, trajectories};
use tree_pack::{
    Gateway, LossForm, Objective, PackError, PackOptions, PackedStep, Partitioning, PastRun,
    PrefixForest, Trajectory, build_forests, flat_forests, pack_step,
};

const MODES: [Partitioning; 2] = [Partitioning::Connected, Partitioning::Shared];

/// Every prediction as the path it is made from and all its columns, in a fixed order.
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

/// How many trajectories go through each path, repeated rows not counted again.
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

/// Checks all that a partitioned step promises beyond [`PackedStep::validate`].
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
            // What the row sees: past keys, then rows of its own pack, outermost first.
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
        let whole = PackOptions { loss, pad_to_multiple, ..PackOptions::new(largest_tree(&forests)) };
        let whole = pack_step(&trajectories, &forests, &whole).unwrap();
        let mut rows: Vec<Prefix> = paths_of(&whole).concat();
        rows.sort();
        if !flat {
            prop_assert_eq!(&rows, &prefixes(&trajectories).into_keys().collect::<Vec<_>>());
        }
        let predictions = predictions_of(&whole);
        let counts = counts_of(&whole);
        for (path, count) in &counts {
            let through = |own: &&Trajectory| own.task_id == path.0 && own.tokens.starts_with(&path.1);
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

    /// Smaller trees that repeat prefixes make every prediction once, too; a path that does not
    /// fit is refused.
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

/// A budget that holds every tree changes nothing, and one that does not is refused by default.
#[test]
fn partitioning_touches_only_trees_over_the_budget() {
    let trajectory = |task: &str, tokens: &[u32]| {
        Trajectory::new(task, "run", tokens.to_vec(), vec![true; tokens.len()])
    };
    let trajectories = [
        trajectory("a", &[1, 2]),
        trajectory("b", &[1, 2, 3, 4, 5, 6, 7]),
        trajectory("c", &[1, 2, 3]),
    ];
    let forests = build_forests(&trajectories).unwrap();
    for partitioning in MODES {
        let options = |token_budget, partitioning| PackOptions {
            partitioning,
            ..PackOptions::new(token_budget)
        };
        let whole = pack_step(&trajectories, &forests, &options(7, Partitioning::Refuse)).unwrap();
        let step = pack_step(&trajectories, &forests, &options(7, partitioning)).unwrap();
        assert_eq!(step, whole);

        // The small trees share a pack; the parts of the large one are together.
        let step = pack_step(&trajectories, &forests, &options(5, partitioning)).unwrap();
        let tasks: Vec<_> = step
            .packs
            .iter()
            .map(|pack| pack.task_ids.join("+"))
            .collect();
        assert_eq!(tasks, ["a+c", "b", "b"]);
        assert!(step.packs[1].gateway.is_none());
        let gateway = step.packs[2].gateway.as_ref().unwrap();
        assert_eq!((gateway.parent, gateway.past_keys()), (1, 2));
        assert_eq!(gateway.root_parents, [1]);
        assert_eq!(step.packs[2].layout.position_ids, [2, 3, 4, 5, 6]);
        // The prediction across the cut is the parent's.
        assert_eq!(step.packs[1].occurrences.rows, [0, 1]);
        assert_eq!(step.packs[1].occurrences.targets, [2, 3]);
        let count: usize = step.packs.iter().map(|pack| pack.occurrences.len()).sum();
        assert_eq!(
            count,
            predictions(&trajectories, Objective::PerOccurrence).len()
        );
    }
}

/// Rows of siblings before the cut are no past keys, and positions go on by depth.
#[test]
fn past_keys_skip_siblings_before_the_cut() {
    let trajectory =
        |tokens: &[u32]| Trajectory::new("t", "run", tokens.to_vec(), vec![true; tokens.len()]);
    let trajectories = [
        trajectory(&[1, 2, 3]),
        trajectory(&[1, 2, 4, 5, 6, 7, 8, 9, 10]),
        trajectory(&[1, 2, 11]),
    ];
    let forests = build_forests(&trajectories).unwrap();
    for partitioning in MODES {
        let options = PackOptions {
            partitioning,
            ..PackOptions::new(6)
        };
        let step = pack_step(&trajectories, &forests, &options).unwrap();
        let tokens = step.packs.iter().map(|pack| pack.layout.tokens.clone());
        let tokens: Vec<_> = tokens.collect();
        assert_eq!(tokens, [vec![1, 2, 3, 4, 11], vec![5, 6, 7, 8, 9, 10]]);
        let child = &step.packs[1];
        let run = |rows, position| PastRun {
            pack: 0,
            rows,
            position,
            visible_to: 0..6,
        };
        let gateway = Gateway {
            parent: 0,
            runs: vec![run(0..2, 0), run(3..4, 2)],
            root_parents: vec![2],
        };
        assert_eq!(child.gateway, Some(gateway));
        assert_eq!(child.layout.position_ids, [3, 4, 5, 6, 7, 8]);
        assert_eq!(child.layout.parents, [-1, 0, 1, 2, 3, 4]);
    }
}

/// The picture of the documentation: two parts share a pack, three levels of nodes, two of packs.
#[test]
fn parts_that_continue_one_part_share_a_pack() {
    let trajectories = ["ABCDE", "ABFGHIJ", "ABFK", "ABLM"].map(|tokens| {
        let tokens: Vec<u32> = tokens.bytes().map(u32::from).collect();
        let mask = vec![true; tokens.len()];
        Trajectory::new("t", "run", tokens, mask)
    });
    let forests = build_forests(&trajectories).unwrap();
    let packs = |partitioning| {
        let options = PackOptions {
            partitioning,
            ..PackOptions::new(5)
        };
        let step = pack_step(&trajectories, &forests, &options).unwrap();
        let letters = |tokens: &[u32]| -> String {
            let letters = tokens.iter().map(|&token| char::from(token as u8));
            letters.collect()
        };
        let packs = step.packs.iter().map(|pack| {
            let past = past_keys(pack).into_iter();
            let past = past.map(|((owner, row), _)| step.packs[owner].layout.tokens[row as usize]);
            let past = letters(&past.collect::<Vec<_>>());
            format!("{past}>{}", letters(&pack.layout.tokens))
        });
        (packs.collect::<Vec<_>>(), step)
    };
    let (connected, _) = packs(Partitioning::Connected);
    assert_eq!(connected, [">ABFK", "AB>CDE", "ABF>GHIJ", "AB>LM"]);
    let (shared, step) = packs(Partitioning::Shared);
    assert_eq!(shared, [">ABFK", "AB>CDELM", "ABF>GHIJ"]);
    assert_eq!(step.packs[1].layout.position_ids, [2, 3, 4, 2, 3]);
    assert_eq!(step.packs[1].gateway.as_ref().unwrap().root_parents, [1, 1]);
    // B predicts C, F and L.
    assert_eq!(step.packs[0].occurrences.rows, [0, 1, 1, 1, 2, 2]);
    assert_eq!(step.retained_tokens(), 9);
}

/// The token counts of the example in "Tree Training" (figure 5): a tree of 83k tokens whose
/// trajectories have 164k, trained within 60k tokens. Trees that repeat their common prefix have
/// 102k tokens, parts with gateways 83k.
#[test]
fn gateways_compute_every_token_once() {
    let mut fresh = 0..;
    let mut tokens = |thousands: usize| fresh.by_ref().take(1000 * thousands).collect::<Vec<u32>>();
    let prompt = tokens(19);
    let mut trajectories = Vec::new();
    for (turn, answers) in [(2, [13, 12, 12].as_slice()), (1, &[12, 12])] {
        let turn = tokens(turn);
        for &answer in answers {
            let tokens = [prompt.clone(), turn.clone(), tokens(answer)].concat();
            let mask = vec![true; tokens.len()];
            trajectories.push(Trajectory::new("example", "run", tokens, mask));
        }
    }
    let rows = |forests: &[PrefixForest], partitioning| {
        let options = PackOptions {
            partitioning,
            ..PackOptions::new(60_000)
        };
        let step = pack_step(&trajectories, forests, &options).unwrap();
        let rows = step.packs.iter().map(|pack| pack.layout.len());
        (rows.sum::<usize>(), step.packs.len())
    };
    let flat = flat_forests(&trajectories).unwrap();
    let trees = build_forests(&trajectories).unwrap();
    assert_eq!(rows(&flat, Partitioning::Refuse).0, 164_000);
    assert_eq!(rows(&trees, Partitioning::RepeatedPrefixes), (102_000, 2));
    assert_eq!(rows(&trees, Partitioning::Connected), (83_000, 2));
    assert_eq!(rows(&trees, Partitioning::Shared), (83_000, 2));
}

/// A path of a million tokens, and paths that end at every 500th token of one another.
#[test]
fn long_paths_are_cut() {
    let path = |length: usize| Trajectory::new("path", "run", vec![1; length], vec![true; length]);
    let nested: Vec<_> = (1..=100).map(|part| path(500 * part)).collect();
    for (trajectories, parts) in [(vec![path(1_000_000)], 1000), (nested, 50)] {
        let forests = build_forests(&trajectories).unwrap();
        let tokens = forests[0].tokens().len();
        for partitioning in MODES {
            let options = PackOptions {
                partitioning,
                ..PackOptions::new(1000)
            };
            let step = pack_step(&trajectories, &forests, &options).unwrap();
            assert_eq!(step.packs.len(), parts);
            assert_eq!(step.validate(), Ok(()));
            assert_eq!(step.retained_tokens(), tokens);
            let last = step.packs[parts - 1].gateway.as_ref().unwrap();
            assert_eq!(last.past_keys(), tokens - 1000);
            assert_eq!(last.runs.len(), parts - 1);
        }
    }
}
