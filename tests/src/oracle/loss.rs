//! Weights of the predictions of separate sequences, from the definitions of the losses.

use std::collections::{HashMap, HashSet};

use tree_pack::{Aggregation, Objective, Trajectory};

/// `weights[r][t]`: coefficient of the negative log-likelihood of token `t + 1` of trajectory `r`
/// in the loss of the step.
///
/// For [`Objective::Unique`] the first trajectory that trains a tree token carries its weight.
///
/// # Panics
/// For invalid combinations ([`Aggregation::UniqueMean`] without [`Objective::Unique`], and the
/// other means with it).
pub fn prediction_weights(
    trajectories: &[Trajectory],
    objective: Objective,
    aggregation: Aggregation,
) -> Vec<Vec<f64>> {
    let trained = trained_predictions(trajectories);
    let counts: Vec<f64> = trained
        .iter()
        .map(|row| row.iter().filter(|&&trained| trained).count() as f64)
        .collect();
    let n_trajectories = trajectories.len() as f64;
    let total: f64 = counts.iter().sum();
    if objective == Objective::Unique {
        let first = first_trained(trajectories);
        let unique = first.iter().flatten().filter(|&&first| first).count() as f64;
        let weight = match aggregation {
            Aggregation::UniqueMean => 1.0 / unique,
            Aggregation::Sum => 1.0,
            Aggregation::Constant(c) => 1.0 / c,
            Aggregation::ConstantLength(c) => 1.0 / (n_trajectories * c),
            other => panic!("{other:?} is not defined for unique tokens"),
        };
        let row = |row: Vec<bool>| {
            row.iter()
                .map(|&on| if on { weight } else { 0.0 })
                .collect()
        };
        return first.into_iter().map(row).collect();
    }
    let weighted: f64 = trajectories
        .iter()
        .zip(&counts)
        .map(|(t, n)| t.weight * n)
        .sum();
    trained
        .iter()
        .enumerate()
        .map(|(r, row)| {
            let weight = match aggregation {
                Aggregation::Sum => 1.0,
                Aggregation::SepAvg => 1.0 / n_trajectories,
                Aggregation::TrajectoryMean => 1.0 / (n_trajectories * counts[r]),
                Aggregation::TokenMean => 1.0 / total,
                Aggregation::WeightedTokenMean => trajectories[r].weight / weighted,
                Aggregation::Constant(c) => 1.0 / c,
                Aggregation::ConstantLength(c) => 1.0 / (n_trajectories * c),
                other => panic!("{other:?} is defined for unique tokens only"),
            };
            row.iter()
                .map(|&on| if on { weight } else { 0.0 })
                .collect()
        })
        .collect()
}

/// `[r][t]`: whether token `t + 1` of trajectory `r` is trained.
pub fn trained_predictions(trajectories: &[Trajectory]) -> Vec<Vec<bool>> {
    trajectories
        .iter()
        .map(|t| t.loss_mask[1..].to_vec())
        .collect()
}

/// `[r][t]`: whether `r` is the first trajectory that trains the tree token of its token `t + 1`.
fn first_trained(trajectories: &[Trajectory]) -> Vec<Vec<bool>> {
    let mut seen: HashMap<&str, HashSet<&[u32]>> = HashMap::new();
    trajectories
        .iter()
        .map(|trajectory| {
            let seen = seen.entry(&trajectory.task_id).or_default();
            (1..trajectory.tokens.len())
                .map(|t| trajectory.loss_mask[t] && seen.insert(&trajectory.tokens[..=t]))
                .collect()
        })
        .collect()
}
