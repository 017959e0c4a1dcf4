//! Compares forests and layouts of random trajectories with their prefixes.

mod reference;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use reference::{Prefix, prefix, prefixes, row_paths, trajectories};
use tree_pack::{
    ActiveOverLength, PrefixForest, Trajectory, TreeLayout, TreeStats, build_forests, flat_forests,
};

/// The prefix of every row of a forest.
fn prefixes_of_rows(forest: &PrefixForest) -> Vec<Prefix> {
    let paths = row_paths(&TreeLayout::from_forest(forest));
    paths
        .into_iter()
        .map(|path| (forest.task_id().to_owned(), path))
        .collect()
}

proptest! {
    #[test]
    fn every_prefix_is_one_row(trajectories in trajectories(12)) {
        let forests = build_forests(&trajectories).unwrap();
        let rows: Vec<Prefix> = forests.iter().flat_map(prefixes_of_rows).collect();
        let expected: BTreeSet<Prefix> = prefixes(&trajectories).into_keys().collect();
        prop_assert_eq!(rows.len(), expected.len());
        prop_assert_eq!(rows.into_iter().collect::<BTreeSet<_>>(), expected);
    }

    #[test]
    fn trajectories_find_their_rows(trajectories in trajectories(12)) {
        for flat in [false, true] {
            let build = if flat { flat_forests } else { build_forests };
            let mut met = 0;
            for forest in build(&trajectories).unwrap() {
                let rows = prefixes_of_rows(&forest);
                for (number, &index) in forest.trajectories().iter().enumerate() {
                    let trajectory = &trajectories[index as usize];
                    let own: Vec<Prefix> =
                        (0..trajectory.len()).map(|index| prefix(trajectory, index)).collect();
                    let found: Vec<Prefix> = forest
                        .rows_of(number)
                        .into_iter()
                        .map(|row| rows[row as usize].clone())
                        .collect();
                    prop_assert_eq!(found, own);
                    let tree = &forest.trees()[forest.tree_of(number)];
                    prop_assert!(forest.rows_of(number).iter().all(|row| tree.rows.contains(row)));
                    met += 1;
                }
            }
            prop_assert_eq!(met, trajectories.len());
        }
    }

    #[test]
    fn a_key_is_visible_exactly_to_its_extensions(trajectories in trajectories(8)) {
        for flat in [false, true] {
            let build = if flat { flat_forests } else { build_forests };
            for forest in build(&trajectories).unwrap() {
                let layout = TreeLayout::from_forest(&forest);
                prop_assert_eq!(layout.validate(), Ok(()));
                let mut pairs = 0;
                for query in 0..layout.len() {
                    // The path of the query, upwards token by token.
                    let mut visible = BTreeSet::new();
                    let mut row = query as i32;
                    while row >= 0 {
                        visible.insert(row as usize);
                        row = layout.parents[row as usize];
                    }
                    for key in 0..layout.len() {
                        let sees = key <= query && query < layout.subtree_ends[key] as usize;
                        prop_assert_eq!(sees, visible.contains(&key), "{} -> {}", query, key);
                    }
                    prop_assert_eq!(visible.len(), layout.position_ids[query] as usize + 1);
                    pairs += visible.len() as u64;
                }
                prop_assert_eq!(layout.visible_pairs(), pairs);
            }
        }
    }

    #[test]
    fn nodes_end_exactly_where_paths_part_or_end(trajectories in trajectories(12)) {
        let ends: BTreeSet<Prefix> =
            trajectories.iter().map(|own| prefix(own, own.len() - 1)).collect();
        let mut children: BTreeMap<Prefix, usize> = BTreeMap::new();
        for (task, path) in prefixes(&trajectories).into_keys() {
            *children.entry((task, path[..path.len() - 1].to_vec())).or_default() += 1;
        }
        for forest in build_forests(&trajectories).unwrap() {
            let rows = prefixes_of_rows(&forest);
            for node in forest.nodes() {
                for row in node.start..node.end {
                    let row_prefix = &rows[row as usize];
                    let goes_on = children.get(row_prefix) == Some(&1);
                    let is_inside = goes_on && !ends.contains(row_prefix);
                    prop_assert_eq!(is_inside, row + 1 < node.end);
                }
            }
        }
    }

    #[test]
    fn siblings_are_in_order_of_their_first_trajectories(trajectories in trajectories(12)) {
        let first = prefixes(&trajectories);
        for forest in build_forests(&trajectories).unwrap() {
            let rows = prefixes_of_rows(&forest);
            let first_of = |node: u32| first[&rows[forest.nodes()[node as usize].start as usize]];
            let roots: Vec<usize> =
                forest.trees().iter().map(|tree| first_of(tree.nodes.start)).collect();
            prop_assert!(roots.is_sorted());
            for node in 0..forest.nodes().len() as u32 {
                let children: Vec<usize> = forest.children(node).map(first_of).collect();
                prop_assert!(children.is_sorted());
                let source = forest.nodes()[node as usize].source as usize;
                prop_assert_eq!(forest.trajectories()[source] as usize, first_of(node));
            }
        }
    }

    #[test]
    fn statistics_count_prefixes(trajectories in trajectories(12)) {
        let stats = TreeStats::of_all(&build_forests(&trajectories).unwrap(), &trajectories);
        prop_assert_eq!(
            TreeStats::of_all(&flat_forests(&trajectories).unwrap(), &trajectories),
            stats
        );
        let first = prefixes(&trajectories);
        prop_assert_eq!(stats.unique_tokens, first.len() as u64);
        let lengths = || trajectories.iter().map(|own| own.len() as u64);
        prop_assert_eq!(stats.tokens, lengths().sum::<u64>());
        prop_assert_eq!(stats.longest_path_tokens, lengths().max().unwrap());
        let mut trained = BTreeSet::new();
        let (mut trained_tokens, mut conflicts) = (0, 0);
        for own in &trajectories {
            for index in 1..own.len() {
                let own_prefix = prefix(own, index);
                let before = &trajectories[first[&own_prefix]];
                conflicts += u64::from(before.loss_mask[index] != own.loss_mask[index]);
                if own.loss_mask[index] {
                    trained_tokens += 1;
                    trained.insert(own_prefix);
                }
            }
        }
        prop_assert_eq!(stats.trained_tokens, trained_tokens);
        prop_assert_eq!(stats.unique_trained_tokens, trained.len() as u64);
        prop_assert_eq!(stats.mask_conflicts, conflicts);
        let is_leaf = |own: &Trajectory| {
            let (task, path) = prefix(own, own.len() - 1);
            let longer = |(other, tokens): &Prefix| {
                *other == task && tokens.len() > path.len() && tokens.starts_with(&path)
            };
            !first.keys().any(longer)
        };
        let leaves: BTreeSet<Prefix> = trajectories
            .iter()
            .filter(|own| is_leaf(own))
            .map(|own| prefix(own, own.len() - 1))
            .collect();
        prop_assert_eq!(stats.leaves, leaves.len() as u64);
    }

    #[test]
    fn active_counts_are_those_of_each_length(trajectories in trajectories(12)) {
        let active = ActiveOverLength::of(&build_forests(&trajectories).unwrap());
        let longest = trajectories.iter().map(Trajectory::len).max().unwrap();
        for index in 0..longest {
            let alive = trajectories.iter().filter(|own| own.len() > index);
            prop_assert_eq!(active.trajectories[index], alive.clone().count() as u64);
            let distinct: BTreeSet<Prefix> = alive.map(|own| prefix(own, index)).collect();
            prop_assert_eq!(active.tree_tokens[index], distinct.len() as u64);
        }
        prop_assert_eq!(active.trajectories.len(), longest);
        prop_assert_eq!(active.tree_tokens.len(), longest);
    }
}
