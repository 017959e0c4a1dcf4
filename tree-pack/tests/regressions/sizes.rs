//! Deep paths, many branches and large trees.

use tree_pack::{
    Aggregation, PackError, PackOptions, Trajectory, TreeStats, build_forests, flat_forests,
    pack_step,
};

use super::{pack, trained};

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

/// Memory is linear in the number of tokens: otherwise a million leaves would need a terabyte.
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

/// The budget counts tree tokens, not the tokens of a path or the sum over paths.
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
