//! Faults that other implementations of packing trees have had, each as a test of its own.

mod reference;

use std::collections::BTreeSet;

use reference::{noise, packed_loss, row_paths, separate_loss};
use tree_pack::{
    Aggregation, LossForm, Objective, PackError, PackOptions, PackedStep, Trajectory, TreeLayout,
    TreeStats, build_forests, flat_forests, load_trajectories, pack_step,
};

fn trained(task: &str, tokens: &[u32]) -> Trajectory {
    Trajectory::new(
        task,
        format!("{tokens:?}"),
        tokens.to_vec(),
        vec![true; tokens.len()],
    )
}

fn pack(trajectories: &[Trajectory], options: &PackOptions) -> PackedStep {
    pack_step(trajectories, &build_forests(trajectories).unwrap(), options).unwrap()
}

/// Weight of the prediction of `target` after `path`, summed over all packs.
fn weight_of(step: &PackedStep, path: &[u32], target: u32) -> f64 {
    let mut sum = 0.0;
    for pack in &step.packs {
        let paths = row_paths(&pack.layout);
        let columns = &pack.occurrences;
        for entry in 0..columns.len() {
            if paths[columns.rows[entry] as usize] == path && columns.targets[entry] == target {
                sum += columns.weights[entry];
            }
        }
    }
    sum
}

/// A sampled token that three trajectories share counts three times per path and per occurrence,
/// and once where uniqueness is asked for; never by accident.
#[test]
fn shared_sampled_tokens_count_as_the_objective_says() {
    let trajectories = [
        trained("t", &[1, 2, 3]),
        trained("t", &[1, 2, 4]),
        trained("t", &[1, 2, 4]),
    ];
    for (objective, aggregation, shared, fork) in [
        (Objective::PerPath, Aggregation::Sum, 3.0, 2.0),
        (Objective::PerOccurrence, Aggregation::Sum, 3.0, 2.0),
        (Objective::Unique, Aggregation::Sum, 1.0, 1.0),
        (Objective::PerPath, Aggregation::SepAvg, 1.0, 2.0 / 3.0),
        (
            Objective::PerOccurrence,
            Aggregation::TokenMean,
            3.0 / 6.0,
            2.0 / 6.0,
        ),
        (
            Objective::Unique,
            Aggregation::UniqueMean,
            1.0 / 3.0,
            1.0 / 3.0,
        ),
    ] {
        let options = PackOptions {
            objective,
            aggregation,
            ..PackOptions::new(100)
        };
        let step = pack(&trajectories, &options);
        let close = |found: f64, expected: f64| (found - expected).abs() < 1e-15;
        assert!(
            close(weight_of(&step, &[1], 2), shared),
            "{objective:?} {aggregation:?}"
        );
        assert!(
            close(weight_of(&step, &[1, 2], 4), fork),
            "{objective:?} {aggregation:?}"
        );
    }
}

/// The last token of a path has no target: not the first token of the row, of a sibling, or of
/// the next tree.
#[test]
fn last_tokens_of_paths_predict_nothing() {
    let trajectories = [
        trained("a", &[1, 2, 3]),
        trained("a", &[1, 2, 4, 5]),
        trained("a", &[1, 2]),
        trained("b", &[9, 8]),
        trained("b", &[7]),
    ];
    let step = pack(&trajectories, &PackOptions::new(100));
    assert_eq!(step.packs.len(), 1);
    let layout = &step.packs[0].layout;
    let occurrences = &step.packs[0].occurrences;
    assert_eq!(layout.tokens, [1, 2, 3, 4, 5, 9, 8, 7]);
    assert_eq!(occurrences.rows, [0, 1, 1, 3, 5]);
    assert_eq!(occurrences.targets, [2, 3, 4, 5, 8]);
}

/// The first token after a fork is predicted for every branch, from the one row before the fork.
#[test]
fn all_first_tokens_after_a_fork_are_predicted() {
    let trajectories: Vec<_> = (10..20)
        .map(|token| trained("t", &[1, 2, token, 3]))
        .collect();
    let options = PackOptions {
        aggregation: Aggregation::Sum,
        ..PackOptions::new(100)
    };
    let step = pack(&trajectories, &options);
    assert_eq!(weight_of(&step, &[1], 2), 10.0);
    for token in 10..20 {
        assert_eq!(weight_of(&step, &[1, 2], token), 1.0);
        assert_eq!(weight_of(&step, &[1, 2, token], 3), 1.0);
    }
}

/// Visibility is right on every level, not only below the root.
#[test]
fn visibility_is_right_at_depth_five() {
    // All sequences of five tokens below a root, so that each level forks.
    let trajectories: Vec<_> = (0..32u32)
        .map(|bits| {
            let tokens: Vec<u32> = [7]
                .into_iter()
                .chain((0..5).map(|level| (bits >> level) & 1))
                .collect();
            trained("t", &tokens)
        })
        .collect();
    let forest = &build_forests(&trajectories).unwrap()[0];
    let layout = TreeLayout::from_forest(forest);
    let paths = row_paths(&layout);
    assert_eq!(layout.len(), 63);
    for query in 0..layout.len() {
        for key in 0..layout.len() {
            let sees = key <= query && query < layout.subtree_ends[key] as usize;
            assert_eq!(
                sees,
                paths[query].starts_with(&paths[key]),
                "{query} sees {key}"
            );
        }
    }
}

/// Equal trajectories, also with others between them, and strict prefixes of others count fully,
/// whatever their order.
#[test]
fn duplicates_and_strict_prefixes_in_any_order() {
    let sequences: [&[u32]; 5] = [&[1, 2, 3, 4], &[1, 2], &[1, 2, 3, 4], &[1, 5], &[1, 2, 3]];
    let mut order = [0, 1, 2, 3, 4];
    let expected = [
        ([1].as_slice(), 2, 4.0),
        (&[1], 5, 1.0),
        (&[1, 2], 3, 3.0),
        (&[1, 2, 3], 4, 2.0),
    ];
    let mut orders = 0;
    permutations(&mut order, 0, &mut |order| {
        orders += 1;
        let trajectories: Vec<_> = order
            .iter()
            .map(|&index| trained("t", sequences[index]))
            .collect();
        let options = PackOptions {
            aggregation: Aggregation::SepAvg,
            ..PackOptions::new(5)
        };
        let step = pack(&trajectories, &options);
        assert_eq!(step.totals.trajectories, 5);
        for (path, target, count) in expected {
            let found = weight_of(&step, path, target);
            assert!(
                (found - count / 5.0).abs() < 1e-15,
                "{order:?}: {path:?} -> {target}"
            );
        }
    });
    assert_eq!(orders, 120);
}

fn permutations(order: &mut [usize; 5], from: usize, visit: &mut impl FnMut(&[usize; 5])) {
    if from == order.len() {
        return visit(order);
    }
    for index in from..order.len() {
        order.swap(from, index);
        permutations(order, from + 1, visit);
        order.swap(from, index);
    }
}

/// Trajectories are counted, not leaves: one that ends at an inner node has its weight.
#[test]
fn trajectories_that_end_at_inner_nodes_have_weight() {
    let trajectories = [
        trained("t", &[1, 2, 3]),
        trained("t", &[1, 2]),
        trained("t", &[1, 2, 4]),
    ];
    let stats = TreeStats::of_all(&build_forests(&trajectories).unwrap(), &trajectories);
    assert_eq!((stats.trajectories, stats.leaves), (3, 2));
    let options = PackOptions {
        aggregation: Aggregation::TrajectoryMean,
        ..PackOptions::new(100)
    };
    let step = pack(&trajectories, &options);
    // 1/3 of each trajectory's mean: half, all and half of them is this prediction.
    assert!((weight_of(&step, &[1], 2) - (0.5 + 1.0 + 0.5) / 3.0).abs() < 1e-15);
}

/// Deep paths and deep trees need no recursion.
#[test]
fn deep_paths_and_trees() {
    let length = 1_000_000;
    let path = Trajectory::new("t", "0", vec![3; length], vec![true; length]);
    let mut other = path.clone();
    other.tokens[length - 1] = 4;
    let step = pack(&[path, other], &PackOptions::new(length + 1));
    assert_eq!(step.packs[0].layout.len(), length + 1);
    assert_eq!(step.packs[0].layout.position_ids[length], length as u32 - 1);
    assert_eq!(step.packs[0].layout.validate(), Ok(()));

    // Every prefix of a sequence, so that each token is a node.
    let depth = 3000;
    let prefixes: Vec<_> = (1..=depth)
        .map(|length| trained("t", &vec![3; length]))
        .collect();
    let forest = &build_forests(&prefixes).unwrap()[0];
    assert_eq!(
        (forest.nodes().len(), forest.tokens().len()),
        (depth, depth)
    );
    let options = PackOptions {
        aggregation: Aggregation::Sum,
        ..PackOptions::new(depth)
    };
    let step = pack(&prefixes, &options);
    let weights = (1..depth).rev().map(|count| count as f64);
    assert!(
        step.packs[0]
            .occurrences
            .weights
            .iter()
            .copied()
            .eq(weights)
    );
}

/// What is stored is linear in the tokens: a million leaves would need a terabyte otherwise.
#[test]
fn a_million_branches_need_no_matrix() {
    let count = 1_000_000;
    let branch = |token| Trajectory::new("t", "", vec![7, token], vec![false, true]);
    let trajectories: Vec<_> = (0..count).map(branch).collect();
    let step = pack(&trajectories, &PackOptions::new(count as usize + 1));
    let layout = &step.packs[0].layout;
    assert_eq!(layout.len(), count as usize + 1);
    assert_eq!(layout.visible_pairs(), 2 * u64::from(count) + 1);
    assert_eq!(layout.subtree_ends[0], count + 1);
    assert!(step.packs[0].occurrences.rows.iter().all(|&row| row == 0));
    assert!(
        step.packs[0]
            .occurrences
            .targets
            .iter()
            .copied()
            .eq(0..count)
    );
}

/// The budget is one of tree tokens: neither of paths nor of their sum.
#[test]
fn a_bushy_tree_is_measured_by_its_tokens() {
    // A shared prompt of 50 tokens and 20 answers of 10: 250 tree tokens, paths of 60, 1200 flat.
    let prompt: Vec<u32> = (0..50).collect();
    let trajectories: Vec<_> = (0..20)
        .map(|answer| {
            let answer = (0..10).map(|index| 100 + 10 * answer + index);
            trained(
                "bushy",
                &prompt.iter().copied().chain(answer).collect::<Vec<_>>(),
            )
        })
        .collect();
    let forests = build_forests(&trajectories).unwrap();
    assert_eq!(pack(&trajectories, &PackOptions::new(250)).packs.len(), 1);
    let error = pack_step(&trajectories, &forests, &PackOptions::new(249)).unwrap_err();
    assert_eq!(
        error,
        PackError::TreeOverBudget {
            task_id: "bushy".to_owned(),
            tree: 0,
            tokens: 250,
            trajectories: 20,
            longest_path: 60,
            token_budget: 249,
        }
    );
    assert_eq!(
        error.to_string(),
        "task \"bushy\": its tree 0 has 250 tokens (20 trajectories, longest path 60), over the \
         budget of 249 tokens a pack: raise the budget, or let PackOptions::partitioning cut it"
    );
    let flat = flat_forests(&trajectories).unwrap();
    assert!(pack_step(&trajectories, &flat, &PackOptions::new(60)).is_ok());
}

/// Tasks of very different sizes, some without anything trained.
fn uneven_tasks() -> Vec<Trajectory> {
    (0..40u32)
        .map(|number| {
            let length = 2 + (noise([number]) * 60.0) as usize;
            let tokens = (0..length as u32).map(|index| (noise([number, index]) * 9.0) as u32);
            let mask = (0..length as u32).map(|index| number % 5 != 0 && noise([index, 3]) < 0.4);
            let (tokens, mask) = (tokens.collect(), mask.collect());
            Trajectory::new(
                format!("task{}", number / 2),
                number.to_string(),
                tokens,
                mask,
            )
        })
        .collect()
}

/// A mean is over the tokens of the step: it does not change with the number of packs, their
/// padding, or whether anything is shared.
#[test]
fn means_do_not_depend_on_the_number_of_packs() {
    let trajectories = uneven_tasks();
    for aggregation in [
        Aggregation::TokenMean,
        Aggregation::SepAvg,
        Aggregation::TrajectoryMean,
    ] {
        let loss = LossForm::LogLikelihood;
        let expected = separate_loss(&trajectories, Objective::PerOccurrence, aggregation, loss);
        let mut pack_counts = BTreeSet::new();
        for token_budget in [120, 200, 500, 10_000] {
            for pad_to_multiple in [1, 64] {
                let options = PackOptions {
                    pad_to_multiple,
                    aggregation,
                    ..PackOptions::new(token_budget)
                };
                for forests in [
                    build_forests(&trajectories).unwrap(),
                    flat_forests(&trajectories).unwrap(),
                ] {
                    let step = pack_step(&trajectories, &forests, &options).unwrap();
                    pack_counts.insert(step.packs.len());
                    let found = packed_loss(&step, loss);
                    assert!((found - expected).abs() < 1e-12, "{options:?}");
                }
            }
        }
        assert!(pack_counts.len() >= 4, "{pack_counts:?}");
    }
}

/// Padding is counted nowhere but in `padded_len`, and packs are no unit of averaging: all
/// predictions of a token mean have the same weight, in a pack of three tokens and of three hundred.
#[test]
fn packs_and_padding_are_not_counted() {
    let trajectories = uneven_tasks();
    let options = PackOptions {
        pad_to_multiple: 128,
        ..PackOptions::new(120)
    };
    let flat = flat_forests(&trajectories).unwrap();
    let step = pack_step(&trajectories, &flat, &options).unwrap();
    let tokens: usize = trajectories.iter().map(Trajectory::len).sum();
    let trained: usize = trajectories.iter().map(Trajectory::trained_tokens).sum();
    assert_eq!(
        (step.totals.tokens, step.totals.rows),
        (tokens as u64, tokens as u64)
    );
    assert_eq!(step.totals.trained_tokens, trained as u64);
    let weights: Vec<f64> = step
        .packs
        .iter()
        .flat_map(|pack| pack.occurrences.weights.iter().copied())
        .collect();
    assert_eq!(weights, vec![1.0 / trained as f64; trained]);
}

/// The paper's example of 83 k tree tokens for 164 k tokens.
#[test]
fn overlap_ratio_of_the_papers_example() {
    let prompt: Vec<u32> = (0..27_000).collect();
    let trajectories: Vec<_> = (0..4)
        .map(|branch| {
            let tail = (0..14_000).map(|index| 100_000 * (branch + 1) + index);
            trained("t", &prompt.iter().copied().chain(tail).collect::<Vec<_>>())
        })
        .collect();
    let stats = TreeStats::of_all(&build_forests(&trajectories).unwrap(), &trajectories);
    assert_eq!((stats.unique_tokens, stats.tokens), (83_000, 164_000));
    assert_eq!(
        format!("{:.1} %", 100.0 * stats.prefix_overlap_ratio()),
        "49.4 %"
    );
}

/// Whatever is wrong with a file is named with file and line, and nothing of it is used.
#[test]
fn bad_lines_are_named_by_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.jsonl");
    let good = r#"{"task_id":"t","rollout_id":"r","tokens":[1,2],"loss_mask":[0,1]}"#;
    for (bad, what) in [
        (
            r#"{"task_id":"t","rollout_id":"r","tokens":[1,-2],"loss_mask":[0,1]}"#,
            "tokens[1]: got -2",
        ),
        (
            r#"{"task_id":"t","rollout_id":"r","tokens":[1,2],"loss_mask":[0]}"#,
            "loss_mask: got 1",
        ),
        (
            r#"{"task_id":"t","rollout_id":"r","tokens":[1,2],"loss_mask":[0,1],"advantage":NaN}"#,
            "advantage: got NaN",
        ),
        (
            r#"{"task_id":"t","rollout_id":"r","tokens":[1,"#,
            "tokens[1]: EOF",
        ),
    ] {
        std::fs::write(&path, format!("\u{feff}{good}\r\n\r\n{bad}\n{good}\n")).unwrap();
        let message = load_trajectories([&path]).unwrap_err().to_string();
        assert!(
            message.starts_with(&format!("{}:3:", path.display())),
            "{message}"
        );
        assert!(message.contains(what), "{message}");
    }
}
