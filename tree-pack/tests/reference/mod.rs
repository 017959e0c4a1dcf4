//! Slow and simple references of the crate's functions, and random trajectories for comparisons.
//!
//! A tree token is a distinct token prefix of a task's trajectories; the references use prefixes
//! and no trees.

#![allow(dead_code)] // each test program uses its part

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proptest::prelude::*;
use tree_pack::{
    Advantage, Aggregation, LossForm, Objective, Pack, PackedStep, Trajectory, TreeLayout,
};

/// A task and the tokens of a prefix.
pub type Prefix = (String, Vec<u32>);

pub fn prefix(trajectory: &Trajectory, index: usize) -> Prefix {
    (
        trajectory.task_id.clone(),
        trajectory.tokens[..=index].to_vec(),
    )
}

/// Every distinct prefix with the first trajectory through it.
pub fn prefixes(trajectories: &[Trajectory]) -> BTreeMap<Prefix, usize> {
    let mut first = BTreeMap::new();
    for (number, trajectory) in trajectories.iter().enumerate() {
        for index in 0..trajectory.len() {
            first.entry(prefix(trajectory, index)).or_insert(number);
        }
    }
    first
}

/// The tokens on the path to each row, read from `parents`.
pub fn row_paths(layout: &TreeLayout) -> Vec<Vec<u32>> {
    let mut paths: Vec<Vec<u32>> = Vec::new();
    for (row, &token) in layout.tokens.iter().enumerate() {
        let mut path = match usize::try_from(layout.parents[row]) {
            Ok(parent) => paths[parent].clone(),
            Err(_) => Vec::new(),
        };
        path.push(token);
        paths.push(path);
    }
    paths
}

/// For each past key, its pack and row in the step, and the rows that see it.
pub fn past_keys(pack: &Pack) -> Vec<((usize, u32), Range<u32>)> {
    let runs = pack.gateway.iter().flat_map(|gateway| &gateway.runs);
    runs.flat_map(|run| {
        let rows = run.rows.clone();
        rows.map(|row| ((run.pack as usize, row), run.visible_to.clone()))
    })
    .collect()
}

/// The task and the tokens of the path to each row of each pack, through gateways.
pub fn paths_of(step: &PackedStep) -> Vec<Vec<Prefix>> {
    let mut paths: Vec<Vec<Prefix>> = Vec::new();
    for pack in &step.packs {
        let keys = past_keys(pack);
        let mut own: Vec<Prefix> = Vec::new();
        let mut roots = 0;
        for (row, &token) in pack.layout.tokens.iter().enumerate() {
            let mut path = match usize::try_from(pack.layout.parents[row]) {
                Ok(parent) => own[parent].clone(),
                Err(_) => {
                    let before = pack.gateway.as_ref().map(|gateway| {
                        let (owner, row) = keys[gateway.root_parents[roots] as usize].0;
                        assert_eq!(owner, gateway.parent as usize);
                        paths[owner][row as usize].clone()
                    });
                    roots += 1;
                    before.unwrap_or((pack.task_ids[roots - 1].clone(), Vec::new()))
                }
            };
            path.1.push(token);
            own.push(path);
        }
        assert_eq!(pack.task_ids.len(), roots);
        paths.push(own);
    }
    paths
}

/// One original prediction: trajectory and token index.
pub type Prediction = (usize, usize);

/// The predictions that count, by trajectory and token.
pub fn predictions(trajectories: &[Trajectory], objective: Objective) -> Vec<Prediction> {
    let mut met = BTreeSet::new();
    let mut counted = Vec::new();
    for (number, trajectory) in trajectories.iter().enumerate() {
        for index in 1..trajectory.len() {
            if !trajectory.loss_mask[index] {
                continue;
            }
            let is_first = met.insert(prefix(trajectory, index));
            if objective != Objective::Unique || is_first {
                counted.push((number, index));
            }
        }
    }
    counted
}

/// The coefficient of a prediction in the loss of the step.
pub fn coefficient(
    trajectories: &[Trajectory],
    aggregation: Aggregation,
    (number, _): Prediction,
) -> f64 {
    let trained = |trajectory: &Trajectory| {
        (1..trajectory.len())
            .filter(|&index| trajectory.loss_mask[index])
            .count() as f64
    };
    let count = trajectories.len() as f64;
    match aggregation {
        Aggregation::Sum => 1.0,
        Aggregation::SepAvg => 1.0 / count,
        Aggregation::TrajectoryMean => 1.0 / count / trained(&trajectories[number]),
        Aggregation::TokenMean => 1.0 / trajectories.iter().map(trained).sum::<f64>(),
        Aggregation::WeightedTokenMean => {
            let weighted = trajectories.iter().map(|t| t.weight * trained(t));
            trajectories[number].weight / weighted.sum::<f64>()
        }
        Aggregation::UniqueMean => 1.0 / predictions(trajectories, Objective::Unique).len() as f64,
        Aggregation::ConstantLength(length) => 1.0 / count / length,
        Aggregation::Constant(denominator) => 1.0 / denominator,
    }
}

/// A number in 0..1 that depends on all of `words`.
pub fn noise(words: impl IntoIterator<Item = u32>) -> f64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in words {
        state = (state ^ u64::from(word))
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
            .rotate_left(29)
            + 1;
    }
    (state.wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 11) as f64 / (1u64 << 53) as f64
}

/// The model: negative log-likelihood of `target` after `path`.
pub fn nll(path: &[u32], target: u32) -> f64 {
    0.1 + noise(path.iter().copied().chain([target]))
}

/// The loss of one prediction without its coefficient.
pub fn token_loss(loss: LossForm, nll: f64, advantage: f64, old: f64, reference: f64) -> f64 {
    match loss {
        LossForm::LogLikelihood | LossForm::PerTrajectory => nll,
        LossForm::AdvantageWeighted => advantage * nll,
        LossForm::PerToken => {
            let ratio = (-nll - old).exp();
            let clipped = ratio.clamp(0.8, 1.2);
            let kl = (reference + nll).exp() - (reference + nll) - 1.0;
            -(ratio * advantage).min(clipped * advantage) + 0.1 * kl
        }
    }
}

/// The loss of a step from separate sequences. A loss of whole trajectories is the squared sum of
/// each.
pub fn separate_loss(
    trajectories: &[Trajectory],
    objective: Objective,
    aggregation: Aggregation,
    loss: LossForm,
) -> f64 {
    let mut sums = BTreeMap::new();
    for prediction in predictions(trajectories, objective) {
        let (number, index) = prediction;
        let trajectory = &trajectories[number];
        let [path, target] = [
            &trajectory.tokens[..index],
            &trajectory.tokens[index..=index],
        ];
        let input = |value: Option<f32>| f64::from(value.unwrap_or(0.0));
        let value = token_loss(
            loss,
            nll(path, target[0]),
            input(trajectory.advantage_of(index)),
            input(trajectory.old_log_prob_of(index)),
            input(trajectory.ref_log_prob_of(index)),
        );
        *sums.entry(number).or_insert(0.0) +=
            value * coefficient(trajectories, aggregation, prediction);
    }
    sum_up(loss, sums)
}

/// The same loss from packs.
pub fn packed_loss(step: &PackedStep, loss: LossForm) -> f64 {
    let mut sums = BTreeMap::new();
    for (pack, paths) in step.packs.iter().zip(paths_of(step)) {
        let occurrences = &pack.occurrences;
        let input = |column: &Option<Vec<f32>>, index: usize| {
            f64::from(column.as_ref().map_or(0.0, |values| values[index]))
        };
        for index in 0..occurrences.len() {
            let (_, path) = &paths[occurrences.rows[index] as usize];
            let mut advantage = input(&occurrences.advantages, index);
            if loss == LossForm::AdvantageWeighted {
                advantage = 1.0; // already in the weight
            }
            let value = token_loss(
                loss,
                nll(path, occurrences.targets[index]),
                advantage,
                input(&occurrences.old_log_probs, index),
                input(&occurrences.ref_log_probs, index),
            );
            *sums
                .entry(occurrences.trajectories[index] as usize)
                .or_insert(0.0) += value * occurrences.weights[index];
        }
    }
    sum_up(loss, sums)
}

fn sum_up(loss: LossForm, sums: BTreeMap<usize, f64>) -> f64 {
    let is_squared = loss == LossForm::PerTrajectory;
    sums.into_values()
        .map(|sum| if is_squared { sum * sum } else { sum })
        .sum()
}

/// The ingredients of a random trajectory.
#[derive(Clone, Debug)]
pub struct Recipe {
    task: usize,
    /// An earlier trajectory, and the shared fraction of it in units of 1/256.
    start: Option<(prop::sample::Index, u16)>,
    tail: Vec<u32>,
    mask: u64,
    weight: u8,
    same_inputs: bool,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let tail = prop_oneof![
        4 => prop::collection::vec(0u32..3, 0..6),
        // A long node, so that positions and rows differ from node indices.
        1 => (0u32..3, 20usize..80).prop_map(|(token, length)| vec![token; length]),
    ];
    let start = prop::option::weighted(0.8, (any::<prop::sample::Index>(), 0u16..=256));
    (
        0usize..3,
        start,
        tail,
        any::<u64>(),
        0u8..4,
        prop::bool::weighted(0.8),
    )
        .prop_map(|(task, start, tail, mask, weight, same_inputs)| Recipe {
            task,
            start,
            tail,
            mask,
            weight,
            same_inputs,
        })
}

fn cook(recipes: Vec<Recipe>) -> Vec<Trajectory> {
    let mut trajectories: Vec<Trajectory> = Vec::new();
    for (number, recipe) in (0u32..).zip(recipes) {
        let mut task_id = format!("task{}", recipe.task);
        let mut tokens = Vec::new();
        if let (Some((index, part)), false) = (recipe.start, trajectories.is_empty()) {
            let earlier = index.get(&trajectories);
            task_id.clone_from(&earlier.task_id);
            tokens.extend(&earlier.tokens[..earlier.len() * usize::from(part) / 256]);
        }
        tokens.extend(&recipe.tail);
        if tokens.is_empty() {
            tokens.push(0);
        }
        let mask = (0..tokens.len()).map(|index| recipe.mask.rotate_right(index as u32) & 1 == 1);
        let mask: Vec<bool> = mask.collect();
        let mut trajectory = Trajectory::new(task_id, format!("rollout{number}"), tokens, mask);
        trajectory.weight = f64::from(recipe.weight) + 0.5;
        add_inputs(&mut trajectory, if recipe.same_inputs { 0 } else { number });
        trajectories.push(trajectory);
    }
    trajectories
}

/// Inputs that are the same for equal prefixes and equal `salt`.
fn add_inputs(trajectory: &mut Trajectory, salt: u32) {
    let column = |kind: u32| {
        let rows = 1..trajectory.len();
        rows.map(|index| {
            let words = trajectory.tokens[..=index].iter().copied();
            (noise(words.chain([kind, salt])) * 2.0 - 1.0) as f32
        })
        .collect::<Vec<f32>>()
    };
    let (advantages, old, reference) = (column(0), column(1), column(2));
    trajectory.sampling_log_probs = Some(column(3));
    trajectory.advantage = Some(Advantage::Token(advantages));
    trajectory.old_log_probs = Some(old);
    trajectory.ref_log_probs = Some(reference);
}

/// Up to `most` trajectories of up to three tasks with forks, single-token and long nodes,
/// duplicates, strict prefixes, several roots, different masks, and partly equal advantages and
/// log-probabilities.
pub fn trajectories(most: usize) -> impl Strategy<Value = Vec<Trajectory>> {
    prop::collection::vec(recipe(), 1..=most).prop_map(cook)
}
