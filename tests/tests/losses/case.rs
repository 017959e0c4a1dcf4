//! Random trajectories with all inputs of the losses, and packs of them without a model: the
//! log-probability of a token is a function of its prefix.

use std::collections::BTreeMap;

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_tree_nn::TokenLogProbs;
use burn_tree_train::losses::reference::Prediction;
use proptest::prelude::*;
use tree_pack::{
    Advantage, Aggregation, Objective, Occurrences, Pack, PackedStep, Trajectory, TreeBatch,
};
use tree_training_tests::forest::{Forest, ForestShape, forests};
use tree_training_tests::oracle::loss::prediction_weights;

/// Trajectories of a random forest with inputs.
#[derive(Clone)]
pub struct Case {
    pub forest: Forest,
    /// Trajectories whose index has this bit set have their own inputs; the others share those of
    /// the prefix.
    pub own_inputs: u64,
    pub seed: u32,
    pub token_advantages: bool,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "seed {}, own inputs {:#x}, advantages {}",
            self.seed,
            self.own_inputs,
            if self.token_advantages {
                "of tokens"
            } else {
                "of trajectories"
            },
        )?;
        self.forest.fmt(f)
    }
}

pub fn cases() -> impl Strategy<Value = Case> {
    let shape = ForestShape::default();
    (
        forests(shape),
        prop_oneof![Just(0), any::<u64>()],
        any::<u32>(),
        any::<bool>(),
    )
        .prop_map(|(forest, own_inputs, seed, token_advantages)| Case {
            forest,
            own_inputs,
            seed,
            token_advantages,
        })
}

/// Key of a tree token.
pub type Prefix = (String, Vec<u32>);

/// Key of an original prediction: index of the trajectory, index of the token.
pub type Original = (usize, usize);

impl Case {
    pub fn trajectories(&self) -> Vec<Trajectory> {
        let mut trajectories = self.forest.trajectories();
        for (index, trajectory) in trajectories.iter_mut().enumerate() {
            let own = (self.own_inputs >> (index % 64)) & 1 == 1;
            let salt = if own { index as u32 + 1 } else { 0 };
            let column = |kind: u32, low: f64, high: f64| -> Vec<f32> {
                (1..trajectory.len())
                    .map(|t| {
                        let noise = noise(&trajectory.tokens[..=t], [self.seed, kind, salt]);
                        (low + (high - low) * noise) as f32
                    })
                    .collect()
            };
            // Near the log-probabilities of the policy, so that some ratios are clipped.
            let near = |kind: u32, width: f64| -> Vec<f32> {
                let offsets = column(kind, -width, width);
                let tokens = (1..).zip(offsets);
                tokens
                    .map(|(t, offset)| (self.log_prob(&trajectory.tokens[..=t]) as f32) + offset)
                    .collect()
            };
            let old = near(1, 0.6);
            let advantage = match self.token_advantages {
                true => Advantage::Token(column(0, -2.0, 2.0)),
                // The first values of a trajectory, and its advantage, may be shared.
                false => Advantage::Trajectory([1.5, -1.0, 0.0, -0.25][(salt % 4) as usize]),
            };
            let (reference, sampling) = (near(2, 1.0), near(3, 0.8));
            trajectory.advantage = Some(advantage);
            trajectory.old_log_probs = Some(old);
            trajectory.ref_log_probs = Some(reference);
            trajectory.sampling_log_probs = Some(sampling);
        }
        trajectories
    }

    /// Log-probability of the last token of `path` after the others.
    pub fn log_prob(&self, path: &[u32]) -> f64 {
        -0.05 - 3.0 * noise(path, [self.seed, 10, 0])
    }

    pub fn entropy(&self, path: &[u32]) -> f64 {
        2.0 * noise(path, [self.seed, 11, 0])
    }

    /// The trained predictions, by trajectory and token.
    pub fn predictions(
        &self,
        trajectories: &[Trajectory],
        objective: Objective,
        aggregation: Aggregation,
    ) -> BTreeMap<Original, Prediction> {
        let weights = prediction_weights(trajectories, objective, aggregation);
        let input = |value: Option<f32>| f64::from(value.expect("all inputs are given"));
        let mut predictions = BTreeMap::new();
        for (r, trajectory) in trajectories.iter().enumerate() {
            for t in (1..trajectory.len()).filter(|&t| weights[r][t - 1] != 0.0) {
                let path = &trajectory.tokens[..=t];
                let prediction = Prediction {
                    weight: weights[r][t - 1],
                    log_prob: self.log_prob(path),
                    old_log_prob: input(trajectory.old_log_prob_of(t)),
                    ref_log_prob: input(trajectory.ref_log_prob_of(t)),
                    sampling_log_prob: input(trajectory.sampling_log_prob_of(t)),
                    advantage: input(trajectory.advantage_of(t)),
                    entropy: self.entropy(path),
                };
                predictions.insert((r, t), prediction);
            }
        }
        predictions
    }

    /// The output of the head for a pack: `f` of the prefixes of its occurrences.
    pub fn head(
        &self,
        step: &PackedStep,
        pack: &Pack,
        trajectories: &[Trajectory],
    ) -> TokenLogProbs {
        let paths = originals(step, pack)
            .into_iter()
            .map(|(r, t)| &trajectories[r].tokens[..=t])
            .collect::<Vec<_>>();
        TokenLogProbs::new(
            leaf(paths.iter().map(|path| self.log_prob(path)).collect()),
            Some(leaf(paths.iter().map(|path| self.entropy(path)).collect())),
        )
    }
}

/// The original prediction of each occurrence of a pack, or the first of them if merged.
pub fn originals(step: &PackedStep, pack: &Pack) -> Vec<Original> {
    let columns = &pack.occurrences;
    columns
        .trajectories
        .iter()
        .zip(&columns.token_indices)
        .map(|(&number, &t)| {
            let data_index = step.trajectories[number as usize].data_index;
            (data_index as usize, t as usize)
        })
        .collect()
}

/// The device of these tests, which need f64.
pub fn device() -> Device {
    Device::flex().autodiff()
}

pub fn batch(pack: &Pack) -> TreeBatch {
    TreeBatch::with_dtype(std::slice::from_ref(pack), &device(), FloatDType::F64)
}

fn leaf(values: Vec<f64>) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), (&device(), DType::F64)).require_grad()
}

/// Values by original prediction, summed over the predictions that a merged step combines.
pub fn by_entry(
    values: impl IntoIterator<Item = (Original, f64)>,
    step: &PackedStep,
    trajectories: &[Trajectory],
) -> BTreeMap<(Prefix, Option<usize>), f64> {
    let mut sums = BTreeMap::new();
    for ((r, t), value) in values {
        let trajectory = &trajectories[r];
        let prefix = (trajectory.task_id.clone(), trajectory.tokens[..=t].to_vec());
        let owner = (!step.merged).then_some(r);
        *sums.entry((prefix, owner)).or_insert(0.0) += value;
    }
    sums
}

/// A value in 0..1, as a hash of all words.
fn noise(path: &[u32], salt: [u32; 3]) -> f64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for &word in path.iter().chain(&salt) {
        state = (state ^ u64::from(word))
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
            .rotate_left(29)
            .wrapping_add(1);
    }
    (state.wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 11) as f64 / (1u64 << 53) as f64
}

/// Asserts that two maps have the same keys, and values within `tolerance` of the largest.
pub fn check_close<K: Ord + std::fmt::Debug>(
    found: &BTreeMap<K, f64>,
    expected: &BTreeMap<K, f64>,
    tolerance: f64,
) -> Result<(), TestCaseError> {
    prop_assert!(found.keys().eq(expected.keys()));
    let largest = expected
        .values()
        .fold(1e-3, |largest: f64, value| largest.max(value.abs()));
    for (key, value) in expected {
        let difference = (found[key] - value).abs();
        prop_assert!(
            difference <= tolerance * largest,
            "{key:?}: {} instead of {value}",
            found[key]
        );
    }
    Ok(())
}

/// The step with the occurrences of every pack distributed over `parts` packs, as in partitioned
/// trees: trajectories are in several packs.
pub fn spread_over_packs(step: &PackedStep, parts: usize) -> PackedStep {
    let mut torn = step.clone();
    torn.packs.clear();
    for pack in &step.packs {
        for part in 0..parts {
            let mut piece = pack.clone();
            let keep = |index: usize| index % parts == part;
            let Occurrences {
                loss_form: _,
                rows,
                targets,
                weights,
                multiplicities,
                trajectories,
                token_indices,
                advantages,
                old_log_probs,
                ref_log_probs,
                sampling_log_probs,
            } = &mut piece.occurrences;
            for column in [rows, targets, multiplicities, trajectories, token_indices] {
                retain(column, keep);
            }
            retain(weights, keep);
            let inputs = [advantages, old_log_probs, ref_log_probs, sampling_log_probs];
            for column in inputs.into_iter().flatten() {
                retain(column, keep);
            }
            torn.packs.push(piece);
        }
    }
    torn
}

fn retain<T>(column: &mut Vec<T>, keep: impl Fn(usize) -> bool) {
    let mut index = 0;
    column.retain(|_| {
        index += 1;
        keep(index - 1)
    });
}
