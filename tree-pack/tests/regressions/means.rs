//! Means over the tokens of a step.

use std::collections::BTreeSet;

use tree_pack::{
    Aggregation, LossForm, Objective, PackOptions, Trajectory, build_forests, flat_forests,
    pack_step,
};

use super::reference::{noise, packed_loss, separate_loss};

/// Tasks of very different sizes, some without trained tokens.
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

/// A mean is over the tokens of the step: it does not depend on the number of packs, on padding, or
/// on sharing.
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

/// Only `padded_len` counts padding, and a mean is not over packs: all predictions of a token mean
/// have the same weight, in a pack of three tokens or of three hundred.
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
