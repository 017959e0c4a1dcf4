//! Small examples with every value worked out by hand.

use tree_pack::{
    Aggregation, LossForm, Objective, PackOptions, Trajectory, build_forests, flat_forests,
    pack_step,
};

const A: u32 = 10;
const B: u32 = 11;
const C: u32 = 12;
const D: u32 = 13;
const E: u32 = 14;
const F: u32 = 15;
const G: u32 = 16;

/// ABCD, ABCE and ABFG, all tokens trained.
fn three_of_four() -> Vec<Trajectory> {
    [[A, B, C, D], [A, B, C, E], [A, B, F, G]]
        .iter()
        .enumerate()
        .map(|(rollout, tokens)| {
            Trajectory::new("task", rollout.to_string(), tokens.to_vec(), vec![true; 4])
        })
        .collect()
}

#[test]
fn abcd_abce_abfg_layout() {
    let trajectories = three_of_four();
    let forests = build_forests(&trajectories).unwrap();
    let step = pack_step(&trajectories, &forests, &PackOptions::new(7)).unwrap();
    let layout = &step.packs[0].layout;
    assert_eq!(layout.tokens, [A, B, C, D, E, F, G]);
    assert_eq!(layout.position_ids, [0, 1, 2, 3, 3, 2, 3]);
    assert_eq!(layout.parents, [-1, 0, 1, 2, 2, 1, 5]);
    assert_eq!(layout.subtree_ends, [7, 7, 5, 4, 5, 7, 7]);
    assert_eq!(layout.visible_pairs(), 21);

    let flat = flat_forests(&trajectories).unwrap();
    let step = pack_step(&trajectories, &flat, &PackOptions::new(12)).unwrap();
    assert_eq!(step.packs[0].layout.visible_pairs(), 30);
}

#[test]
fn abcd_abce_abfg_nine_predictions_from_four_rows() {
    let trajectories = three_of_four();
    let forests = build_forests(&trajectories).unwrap();
    let options = PackOptions {
        loss: LossForm::PerTrajectory,
        ..PackOptions::new(7)
    };
    let step = pack_step(&trajectories, &forests, &options).unwrap();
    let occurrences = &step.packs[0].occurrences;
    let mut by_trajectory: Vec<_> = occurrences
        .trajectories
        .iter()
        .zip(&occurrences.token_indices)
        .zip(occurrences.rows.iter().zip(&occurrences.targets))
        .collect();
    by_trajectory.sort();
    let rows: Vec<u32> = by_trajectory.iter().map(|(_, (row, _))| **row).collect();
    let targets: Vec<u32> = by_trajectory
        .iter()
        .map(|(_, (_, target))| **target)
        .collect();
    assert_eq!(rows, [0, 1, 2, 0, 1, 2, 0, 1, 5]);
    assert_eq!(targets, [B, C, D, B, C, E, B, F, G]);
    assert_eq!(occurrences.weights, [1.0 / 9.0; 9]);

    let options = PackOptions {
        objective: Objective::PerPath,
        aggregation: Aggregation::Sum,
        ..PackOptions::new(7)
    };
    let merged = pack_step(&trajectories, &forests, &options).unwrap();
    let occurrences = &merged.packs[0].occurrences;
    assert_eq!(occurrences.rows, [0, 1, 1, 2, 2, 5]);
    assert_eq!(occurrences.targets, [B, C, F, D, E, G]);
    assert_eq!(occurrences.weights, [3.0, 2.0, 1.0, 1.0, 1.0, 1.0]);
}
