//! Time of packing trees whole and in parts, at one, two and four times the nodes.
//!
//! ```text
//! cargo bench -p tree-pack --bench partitioning
//! ```
//!
//! Three shapes: random trees of 10,000 nodes each, one random tree, and one tree of a root with
//! single-token branches; up to a million nodes. Each is packed whole and in parts of 4096 tokens.
//! Times are the shortest of [`RUNS`] runs and exclude building the forests.

use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tree_pack::{
    PackOptions, PackedStep, Partitioning, PrefixForest, Trajectory, build_forests, pack_step,
};

const RUNS: usize = 3;
const TOKEN_BUDGET: usize = 4096;

fn main() {
    println!(
        "{:>22} {:>9} {:>9} {:>10} {:>8} {:>10} {:>10} {:>9} {:>9}",
        "shape",
        "nodes",
        "tokens",
        "packs",
        "in parts",
        "past keys",
        "retained",
        "seconds",
        "ns/token"
    );
    for thousands in [350, 700, 1400] {
        // A quarter of them continue a token without a fork and merge with its node.
        let nodes = 1000 * thousands;
        let trees = |tree: usize| random_tree(&format!("task{tree}"), tree as u64, 10_000);
        measure(
            "trees of 10,000 nodes",
            &(0..nodes / 10_000).flat_map(trees).collect::<Vec<_>>(),
        );
        measure("one random tree", &random_tree("task", 0, nodes));
        let branch = |token| Trajectory::new("task", "run", vec![0, token], vec![true; 2]);
        measure(
            "branches of one token",
            &(1..nodes as u32 * 5 / 7).map(branch).collect::<Vec<_>>(),
        );
    }
}

/// Every node continues a random earlier one and has one to five tokens.
fn random_tree(task: &str, seed: u64, nodes: usize) -> Vec<Trajectory> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut parents = vec![0usize];
    let mut is_leaf = vec![true; nodes];
    for node in 1..nodes {
        let parent = random.random_range(0..node);
        parents.push(parent);
        is_leaf[parent] = false;
    }
    let lengths: Vec<usize> = (0..nodes).map(|_| random.random_range(1..=5)).collect();
    let leaves = (0..nodes).filter(|&node| is_leaf[node]);
    leaves
        .map(|leaf| {
            let mut tokens = Vec::new();
            let mut node = leaf;
            loop {
                tokens.extend(std::iter::repeat_n(node as u32, lengths[node]));
                if node == 0 {
                    break;
                }
                node = parents[node];
            }
            tokens.reverse();
            let mask = vec![true; tokens.len()];
            Trajectory::new(task, "run", tokens, mask)
        })
        .collect()
}

fn measure(shape: &str, trajectories: &[Trajectory]) {
    let forests = build_forests(trajectories).expect("the trajectories are valid");
    let trees = forests.iter().flat_map(PrefixForest::trees);
    let largest = trees.map(|tree| tree.rows.len()).max().unwrap_or(1);
    let nodes: usize = forests.iter().map(|forest| forest.nodes().len()).sum();
    for (partitioning, budget, name) in [
        (Partitioning::Refuse, largest, "whole"),
        (Partitioning::Connected, TOKEN_BUDGET, "connected"),
        (Partitioning::Shared, TOKEN_BUDGET, "shared"),
    ] {
        let options = PackOptions {
            partitioning,
            ..PackOptions::new(budget)
        };
        let mut times: Vec<Duration> = Vec::new();
        let mut step = PackedStep::default();
        for _ in 0..RUNS {
            let start = Instant::now();
            step = pack_step(trajectories, &forests, &options).expect("the trees can be cut");
            times.push(start.elapsed());
        }
        let seconds = times.into_iter().min().unwrap_or_default().as_secs_f64();
        let gateways = step.packs.iter().filter_map(|pack| pack.gateway.as_ref());
        println!(
            "{shape:>22} {nodes:>9} {:>9} {:>10} {name:>8} {:>10} {:>10} {seconds:>9.3} {:>9.0}",
            step.totals.rows,
            step.packs.len(),
            gateways.map(|gateway| gateway.past_keys()).sum::<usize>(),
            step.retained_tokens(),
            seconds / step.totals.rows as f64 * 1e9,
        );
    }
}
