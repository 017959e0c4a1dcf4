//! Rows of tiles that no row fills.

use std::path::PathBuf;

use burn_tree_ssm::TreeRecurrence;
use tree_pack::{TreeLayout, build_forests, load_trajectories};

/// What tiles compute in vain on recorded runs, all trees of a file after one another: rows of
/// tiles per row, with tiles of 64 and of 16 rows. Where the nodes are short (those of the last
/// two have 13 and 41 rows on average), pieces of nodes alone would need 4.8 and 1.9 with 64.
#[test]
fn padding_factors_of_recorded_runs() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../data/tokens");
    for (name, of_64, of_16) in [
        ("tau_airline", 1.017, 1.003),
        ("toolbench_dfsdt", 1.110, 1.027),
        ("sweagent_think", 1.069, 1.016),
        ("sweagent_think_marshmallow", 1.039, 1.011),
        ("tot_game24_bfs", 2.558, 1.349),
        ("tot_game24_cot16", 1.541, 1.138),
    ] {
        let file = folder.join(format!("{name}.jsonl.gz"));
        let trajectories = load_trajectories([file]).unwrap();
        let forests = build_forests(&trajectories).unwrap();
        let trees = forests
            .iter()
            .flat_map(|forest| (0..forest.trees().len()).map(move |tree| (forest, tree)));
        let layout = TreeLayout::from_trees(trees);
        let rows = layout.len();
        let recurrence = TreeRecurrence::from_layouts(&[layout], rows);
        for (tile, expected) in [(64, of_64), (16, of_16)] {
            let factor = recurrence.padding_factor(tile);
            assert!(
                (factor - expected).abs() < 5.1e-4,
                "{name}, {tile}: {factor:.4}"
            );
        }
    }
}

#[test]
fn padding_factor_without_rows() {
    let recurrence = TreeRecurrence::from_layouts(&[TreeLayout::default()], 3);
    assert_eq!(recurrence.padding_factor(16), 1.0);
}
