//! Faults of other implementations of tree packing, one test each.

mod means;
#[path = "../reference/mod.rs"]
mod reference;
mod sizes;

use reference::row_paths;
use tree_pack::{
    Aggregation, Objective, PackOptions, PackedStep, Trajectory, TreeLayout, TreeStats,
    build_forests, load_trajectories, pack_step,
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

/// A sampled token that three trajectories share counts three times with the objectives PerPath and
/// PerOccurrence, and once with Unique.
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

/// Equal trajectories, even with others between them, and strict prefixes of others count fully in
/// every order.
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

/// Trajectories count, not leaves: a trajectory that ends at an inner node has its weight.
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
    // One third of each trajectory's mean, of which this prediction is a half, all and a half.
    assert!((weight_of(&step, &[1], 2) - (0.5 + 1.0 + 0.5) / 3.0).abs() < 1e-15);
}

/// Every error in a file names file and line, and nothing of the file is used.
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
