//! Averages are over predictions of the whole step, never over rows or packs.

use burn::tensor::DType;
use burn_tree_nn::{EntropyOutput, LmHeadOptions, token_log_probs};
use burn_tree_train::{BlockContext, sft_loss};
use tree_pack::{Advantage, Aggregation, LossForm, Objective, Trajectory, TreeBatch};
use tree_training_tests::device::{autodiff_device, test_dtypes};
use tree_training_tests::fixture::PolicyObjective;
use tree_training_tests::models::{dense_config, random_model};
use tree_training_tests::packing::Packing;
use tree_training_tests::policy::{PolicyInputs, PolicyLoss};
use tree_training_tests::step::{Batching, hidden_states, packed_step, read, separate_log_probs};
use tree_training_tests::tensors::NamedTensors;

const VOCABULARY: usize = 17;

fn trajectory(task: &str, tokens: &[u32]) -> Trajectory {
    Trajectory::new(task, "rollout", tokens.to_vec(), vec![true; tokens.len()])
}

/// Trees of very different sizes, with different numbers of samples.
fn uneven() -> Vec<Trajectory> {
    let long: Vec<u32> = (0..40).map(|t| t * t % 13).collect();
    let mut trajectories = vec![
        trajectory("long", &long),
        trajectory("long", &[&long[..30], &[14, 15]].concat()),
        trajectory("short", &[1, 2]),
        trajectory("short", &[1, 3]),
        trajectory("short", &[1, 3]),
        trajectory("middle", &[4, 5, 6, 7, 8]),
    ];
    trajectories[0].loss_mask[..10].fill(false);
    trajectories
}

const SMALL_PADDED: Packing = Packing {
    multiple: 64,
    ..Packing::SMALL_PACKS
};

/// The loss and the gradients of a step do not depend on packing or padding.
#[test]
fn means_are_over_the_step_not_over_packs() {
    let device = autodiff_device();
    let trajectories = uneven();
    let form = LossForm::LogLikelihood;
    for dtype in test_dtypes() {
        let tolerance = if dtype == DType::F64 { 1e-12 } else { 1e-5 };
        let model = random_model(&dense_config(VOCABULARY), 4, dtype, &device);
        for aggregation in [
            Aggregation::TokenMean,
            Aggregation::SepAvg,
            Aggregation::TrajectoryMean,
        ] {
            let run = |packing: Packing, batching| {
                let step = packing.pack_for(&trajectories, Objective::PerPath, aggregation, form);
                let packs = step.packs.len();
                let run = packed_step(&model, &step, batching, dtype, &device, sft_loss);
                (
                    packs,
                    run.loss,
                    NamedTensors::gradients(&model, &run.gradients),
                )
            };
            let (one, loss, gradients) = run(Packing::ONE_PACK, Batching::OneByOne);
            let flat = Packing {
                shared: false,
                ..SMALL_PADDED
            };
            let others = [
                run(Packing::SMALL_PACKS, Batching::OneByOne),
                run(SMALL_PADDED, Batching::Together),
                run(flat, Batching::OneByOne),
            ];
            assert_eq!(one, 1);
            for (packs, other_loss, other_gradients) in others {
                assert!(packs > 1);
                assert!(
                    (other_loss - loss).abs() <= tolerance * loss,
                    "{other_loss} {loss}"
                );
                let worst = other_gradients.worst(&gradients, 1e-3);
                assert!(worst.relative <= 10.0 * tolerance, "{worst}");
            }
        }
    }
}

/// Entropy, KL divergence and clip fraction are means over the trained predictions of the
/// sequences, independent of sharing and packing.
#[test]
fn entropy_and_divergence_do_not_depend_on_packing() {
    let device = autodiff_device();
    let mut trajectories = uneven();
    for (index, trajectory) in trajectories.iter_mut().enumerate() {
        let rows = trajectory.len() - 1;
        let column = |scale: f32| -> Vec<f32> {
            (0..rows)
                .map(|t| -2.5 + scale * ((index * 31 + t) as f32).sin())
                .collect()
        };
        trajectory.advantage = Some(Advantage::Trajectory([1.0, -1.0, 0.5][index % 3]));
        trajectory.old_log_probs = Some(column(0.3));
        trajectory.ref_log_probs = Some(column(0.5));
    }
    let dtype = DType::F32;
    let model = random_model(&dense_config(VOCABULARY), 4, dtype, &device);
    let objective = PolicyObjective {
        clip_eps: 0.2,
        kl_coef: 0.1,
    };

    // Separate sequences on the host: full distributions in f64.
    let (mut count, mut entropy, mut divergence, mut clipped) = (0.0, 0.0, 0.0, 0.0);
    for trajectory in &trajectories {
        let log_probs = read(&separate_log_probs(&model, trajectory, &device));
        let entropies = separate_entropies(&model, trajectory, &device);
        let advantage = f64::from(trajectory.advantage_of(1).expect("an advantage"));
        for t in (1..trajectory.len()).filter(|&t| trajectory.is_trained(t)) {
            let input = |value: Option<f32>| f64::from(value.expect("an input"));
            let d = input(trajectory.ref_log_prob_of(t)) - log_probs[t - 1];
            let ratio = (log_probs[t - 1] - input(trajectory.old_log_prob_of(t))).exp();
            count += 1.0;
            entropy += entropies[t - 1];
            divergence += d.exp() - d - 1.0;
            if (advantage > 0.0 && ratio > 1.2) || (advantage < 0.0 && ratio < 0.8) {
                clipped += 1.0;
            }
        }
    }
    assert!(
        clipped > 0.0 && clipped < count,
        "some ratios are clipped and some are not"
    );

    let flat = Packing {
        shared: false,
        ..Packing::ONE_PACK
    };
    for packing in [Packing::ONE_PACK, Packing::SMALL_PACKS, SMALL_PADDED, flat] {
        let (per_occurrence, mean) = (Objective::PerOccurrence, Aggregation::TokenMean);
        let step = packing.pack_for(&trajectories, per_occurrence, mean, LossForm::PerToken);
        let mut found = [0.0; 3];
        for pack in &step.packs {
            let batch = TreeBatch::new(std::slice::from_ref(pack), &device);
            let context = BlockContext::new(&batch);
            let hidden = hidden_states(&model, batch.tokens.clone(), &context);
            let options = LmHeadOptions {
                entropy: EntropyOutput::Value,
                ..LmHeadOptions::default()
            };
            let columns = &batch.occurrences;
            let head = token_log_probs(
                hidden,
                burn_tree_train::TreeModel::head_weight(&model),
                columns,
                options,
            );
            let inputs = PolicyInputs {
                advantages: columns.advantages.clone().expect("advantages"),
                old: columns
                    .old_log_probs
                    .clone()
                    .expect("old log-probabilities"),
                reference: columns.ref_log_probs.clone().expect("reference"),
                weights: columns.weights.clone(),
            };
            let policy = PolicyLoss::new(head.log_probs, &inputs, objective);
            let entropy = head.entropy.expect("asked for") * columns.weights.clone();
            found[0] += read(&entropy.sum())[0];
            found[1] += read(&policy.divergence)[0];
            found[2] += policy.clipped;
        }
        let expected = [entropy, divergence, clipped].map(|sum| sum / count);
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() <= 1e-5 * (1.0 + expected),
                "{found} {expected}"
            );
        }
    }
}

/// Entropy of the distribution that each row predicts, from logits on the host.
fn separate_entropies(
    model: &burn_tree_models::CausalLm,
    trajectory: &Trajectory,
    device: &burn::tensor::Device,
) -> Vec<f64> {
    use burn_tree_train::TreeModel;
    let layout = tree_training_tests::step::sequence_layout(&trajectory.tokens);
    let pack = tree_pack::Pack {
        layout,
        padded_len: trajectory.len(),
        ..Default::default()
    };
    let batch = TreeBatch::new(&[pack], device);
    let context = BlockContext::new(&batch);
    let hidden = hidden_states(model, batch.tokens, &context).squeeze_dim::<2>(0);
    let logits = hidden.matmul(model.head_weight().transpose());
    let [_, vocabulary] = logits.dims();
    let logits = logits
        .into_data()
        .convert::<f64>()
        .try_into_vec::<f64>()
        .expect("f64");
    logits
        .chunks(vocabulary)
        .map(|row| {
            let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
            row.iter()
                .map(|logit| -(logit.exp() / sum) * (logit - sum.ln()))
                .sum()
        })
        .collect()
}

/// Without trained tokens, or with trajectories of one token, the loss is exactly 0 and nothing is
/// NaN.
#[test]
fn nothing_trained_is_a_loss_of_zero() {
    let device = autodiff_device();
    let model = random_model(&dense_config(VOCABULARY), 4, DType::F32, &device);
    let mut untrained = [trajectory("a", &[1, 2, 3]), trajectory("b", &[4])];
    untrained[0].loss_mask.fill(false);
    let single = [trajectory("a", &[1]), trajectory("b", &[4])];
    for trajectories in [untrained.as_slice(), single.as_slice()] {
        for (objective, aggregation) in [
            (Objective::PerPath, Aggregation::TokenMean),
            (Objective::PerPath, Aggregation::SepAvg),
            (Objective::PerPath, Aggregation::TrajectoryMean),
            (Objective::PerPath, Aggregation::WeightedTokenMean),
            (Objective::Unique, Aggregation::UniqueMean),
        ] {
            let form = LossForm::LogLikelihood;
            let step = Packing::ONE_PACK.pack_for(trajectories, objective, aggregation, form);
            let run = packed_step(
                &model,
                &step,
                Batching::OneByOne,
                DType::F32,
                &device,
                sft_loss,
            );
            assert_eq!(run.loss, 0.0, "{aggregation:?}");
            let gradients = NamedTensors::gradients(&model, &run.gradients);
            assert_eq!(gradients.norm(), 0.0, "{aggregation:?}");
        }
    }
}

/// A step without trajectories has no packs and a loss of 0.
#[test]
fn empty_step_is_a_loss_of_zero() {
    let form = LossForm::LogLikelihood;
    let step = Packing::ONE_PACK.pack_for(&[], Objective::PerPath, Aggregation::TokenMean, form);
    assert!(step.packs.is_empty());
    let device = autodiff_device();
    let model = random_model(&dense_config(VOCABULARY), 4, DType::F32, &device);
    let run = packed_step(
        &model,
        &step,
        Batching::OneByOne,
        DType::F32,
        &device,
        sft_loss,
    );
    assert_eq!(run.loss, 0.0);
}
