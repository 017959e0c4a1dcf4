//! The losses of reference models in `tests/fixtures`, from their log-probabilities and our
//! occurrences: everything except the model.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use tree_pack::{
    Advantage, Aggregation, LossForm, Objective, PackOptions, Trajectory, build_forests,
    flat_forests, pack_step,
};

/// `case.json` of every case of every model.
fn cases() -> Vec<(String, Value)> {
    let folder = std::env::var_os("TREE_FIXTURES").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures"),
        PathBuf::from,
    );
    let mut cases = Vec::new();
    for model in std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        if !model.is_dir() {
            continue;
        }
        for case in std::fs::read_dir(model)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if let Ok(json) = std::fs::read_to_string(case.join("case.json")) {
                let json = serde_json::from_str(&json).unwrap();
                cases.push((case.display().to_string(), json));
            }
        }
    }
    assert!(!cases.is_empty());
    cases
}

fn numbers(value: &Value) -> Option<Vec<f64>> {
    Some(
        value
            .as_array()?
            .iter()
            .map(|number| number.as_f64().unwrap())
            .collect(),
    )
}

fn trajectories(case: &Value) -> Vec<Trajectory> {
    let list = case["trajectories"].as_array().unwrap().iter().enumerate();
    list.map(|(number, json)| {
        let list = |field: &str| numbers(&json[field]).unwrap().into_iter();
        let tokens = list("tokens").map(|token| token as u32).collect();
        let mask = list("loss_mask").map(|trained| trained == 1.0).collect();
        let floats = |field: &str| {
            Some(
                numbers(&json[field])?
                    .into_iter()
                    .map(|value| value as f32)
                    .collect(),
            )
        };
        let advantage = json["advantage"].as_f64();
        Trajectory {
            weight: json["weight"].as_f64().unwrap_or(1.0),
            advantage: advantage.map(|value| Advantage::Trajectory(value as f32)),
            old_log_probs: floats("old_logp"),
            ref_log_probs: floats("ref_logp"),
            ..Trajectory::new("case", number.to_string(), tokens, mask)
        }
    })
    .collect()
}

/// Log-probabilities are given with nine decimals; the largest losses are sums of a few hundred of
/// them. Inputs of the policy loss are f32.
const TOLERANCE: f64 = 2e-7;

#[test]
fn losses_follow_from_log_probabilities() {
    for (name, case) in cases() {
        let trajectories = trajectories(&case);
        let expected = &case["expected"];
        let forests = build_forests(&trajectories).unwrap();
        let counts = &expected["counts"];
        assert_eq!(
            counts["trees"].as_u64(),
            Some(forests[0].trees().len() as u64),
            "{name}"
        );

        // Equal prefixes have equal predictions, since the model's output depends only on the path.
        let mut log_probs = BTreeMap::new();
        for (trajectory, values) in trajectories
            .iter()
            .zip(expected["logp"].as_array().unwrap())
        {
            for (row, value) in numbers(values).unwrap().into_iter().enumerate() {
                log_probs.insert(trajectory.tokens[..=row + 1].to_vec(), value);
            }
        }
        for forests in [forests, flat_forests(&trajectories).unwrap()] {
            for (loss, objective, aggregation) in [
                ("sep_avg", Objective::PerPath, Aggregation::SepAvg),
                (
                    "sep_avg_tokenmean",
                    Objective::PerPath,
                    Aggregation::TrajectoryMean,
                ),
                ("token_mean", Objective::PerPath, Aggregation::TokenMean),
                (
                    "weighted_token_mean",
                    Objective::PerPath,
                    Aggregation::WeightedTokenMean,
                ),
                ("unique", Objective::Unique, Aggregation::UniqueMean),
                ("grpo", Objective::PerOccurrence, Aggregation::TokenMean),
            ] {
                let Some(value) = expected["losses"][loss].as_f64() else {
                    continue;
                };
                let is_policy_loss = loss == "grpo";
                let form = if is_policy_loss {
                    LossForm::PerToken
                } else {
                    LossForm::LogLikelihood
                };
                let budget = forests[0]
                    .trees()
                    .iter()
                    .map(|tree| tree.rows.len())
                    .max()
                    .unwrap();
                let options = PackOptions {
                    objective,
                    aggregation,
                    loss: form,
                    ..PackOptions::new(budget)
                };
                let step = pack_step(&trajectories, &forests, &options).unwrap();
                for (field, count) in [
                    ("flat_tokens", step.totals.tokens),
                    ("unique_tokens", step.totals.unique_tokens),
                    ("trained_occurrences", step.totals.trained_tokens),
                    ("trained_unique", step.totals.unique_trained_tokens),
                ] {
                    assert_eq!(counts[field].as_u64(), Some(count), "{name}: {field}");
                }
                let found: f64 = step
                    .packs
                    .iter()
                    .map(|pack| pack_loss(pack, &log_probs, is_policy_loss.then_some(&case)))
                    .sum();
                assert!(
                    (found - value).abs() <= TOLERANCE * (1.0 + value.abs()),
                    "{name}: {loss} {found} instead of {value}"
                );
            }
        }
    }
}

fn pack_loss(
    pack: &tree_pack::Pack,
    log_probs: &BTreeMap<Vec<u32>, f64>,
    policy: Option<&Value>,
) -> f64 {
    let mut paths: Vec<Vec<u32>> = Vec::new();
    for (row, &token) in pack.layout.tokens.iter().enumerate() {
        let parent = usize::try_from(pack.layout.parents[row]);
        let mut path = parent.map_or_else(|_| Vec::new(), |parent| paths[parent].clone());
        path.push(token);
        paths.push(path);
    }
    let columns = &pack.occurrences;
    let terms = (0..columns.len()).map(|entry| {
        let mut path = paths[columns.rows[entry] as usize].clone();
        path.push(columns.targets[entry]);
        let log_prob = log_probs[&path];
        let Some(case) = policy else {
            return -log_prob * columns.weights[entry];
        };
        let parameter = |name: &str| case["objective"][name].as_f64().unwrap();
        let (clip, kl) = (parameter("clip_eps"), parameter("kl_coef"));
        let input = |column: &Option<Vec<f32>>| f64::from(column.as_ref().unwrap()[entry]);
        let advantage = input(&columns.advantages);
        let ratio = (log_prob - input(&columns.old_log_probs)).exp();
        let gain = (ratio * advantage).min(ratio.clamp(1.0 - clip, 1.0 + clip) * advantage);
        let difference = input(&columns.ref_log_probs) - log_prob;
        (kl * (difference.exp() - difference - 1.0) - gain) * columns.weights[entry]
    });
    terms.sum()
}
