//! The recorded runs in `data/tokens`: statistics and fill of the packs.

use std::path::PathBuf;

use serde_json::Value;
use tree_pack::{
    ActiveOverLength, PackOptions, PrefixForest, Trajectory, TreeStats, build_forests,
    load_trajectories, pack_step,
};

fn tokens_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../data/tokens")
}

/// Name, trajectories and forests of every file, with its entry in `stats.json`.
fn each_file(mut visit: impl FnMut(&str, &[Trajectory], &[PrefixForest], &Value)) {
    let json = std::fs::read_to_string(tokens_folder().join("stats.json")).unwrap();
    let files: Vec<Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(files.len(), 6);
    for expected in files {
        let name = expected["name"].as_str().unwrap();
        let path = tokens_folder().join(format!("{name}.jsonl.gz"));
        let trajectories = load_trajectories([path]).unwrap();
        let forests = build_forests(&trajectories).unwrap();
        visit(name, &trajectories, &forests, &expected);
    }
}

#[test]
fn statistics_equal_the_recorded_ones() {
    each_file(|name, trajectories, forests, expected| {
        let stats = TreeStats::of_all(forests, trajectories);
        for (field, value) in [
            ("tasks", stats.tasks),
            ("lines", stats.trajectories),
            ("tokens", stats.tokens),
            ("unique", stats.unique_tokens),
            ("nodes", stats.nodes),
            ("leaves", stats.leaves),
            ("branch_nodes", stats.branch_nodes),
            ("max_out_degree", stats.max_out_degree),
            ("max_depth_nodes", stats.max_depth_nodes),
            ("longest_path_tokens", stats.longest_path_tokens),
            ("largest_tree_unique", stats.largest_tree_tokens),
            ("trained_tokens", stats.trained_tokens),
            ("unique_trained", stats.unique_trained_tokens),
            ("mask_conflicts", stats.mask_conflicts),
        ] {
            assert_eq!(expected[field].as_u64(), Some(value), "{name}: {field}");
        }
        let ratio = expected["POR"].as_f64().unwrap();
        // Recorded with four decimals.
        assert!(
            (stats.prefix_overlap_ratio() - ratio).abs() <= 5.001e-5,
            "{name}: POR"
        );
    });
}

#[test]
fn active_counts_add_up_to_the_tokens() {
    each_file(|name, trajectories, forests, expected| {
        let active = ActiveOverLength::of(forests);
        let sum = |counts: &[u64]| counts.iter().sum::<u64>();
        assert_eq!(
            Some(sum(&active.trajectories)),
            expected["tokens"].as_u64(),
            "{name}"
        );
        assert_eq!(
            Some(sum(&active.tree_tokens)),
            expected["unique"].as_u64(),
            "{name}"
        );
        let longest = expected["longest_path_tokens"].as_u64().unwrap() as usize;
        assert_eq!(
            [active.trajectories.len(), active.tree_tokens.len()],
            [longest; 2]
        );
        assert_eq!(active.trajectories[0], trajectories.len() as u64, "{name}");
        assert_eq!(
            active.tree_tokens[0],
            forests.len() as u64,
            "{name}: one root a task"
        );
    });
}

#[test]
fn packs_are_at_most_five_percent_more_than_their_tokens_need() {
    each_file(|name, trajectories, forests, _| {
        let stats = TreeStats::of_all(forests, trajectories);
        let budget = 2 * stats.largest_tree_tokens as usize;
        let step = pack_step(trajectories, forests, &PackOptions::new(budget)).unwrap();
        let needed = (stats.unique_tokens as usize).div_ceil(budget);
        println!("{name}: {} packs, {needed} needed", step.packs.len());
        assert!(step.packs.len() as f64 <= 1.05 * needed as f64, "{name}");
        assert!(
            step.packs.iter().all(|pack| pack.layout.len() <= budget),
            "{name}"
        );
        let rows: usize = step.packs.iter().map(|pack| pack.layout.len()).sum();
        assert_eq!(rows as u64, stats.unique_tokens, "{name}");
    });
}
