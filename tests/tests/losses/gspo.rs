//! GSPO with trajectories in one pack and in several.

use std::collections::BTreeMap;

use burn::tensor::Device;
use burn_tree_nn::TokenLogProbs;
use burn_tree_train::losses::reference::{self, Prediction};
use burn_tree_train::losses::{
    ClipRange, Gspo, GspoOptions, KlEstimator, KlPenalty, LossInputError, PolicyMetrics,
    Regularization,
};
use proptest::prelude::*;
use tree_pack::{Aggregation, LossForm, Objective, PackedStep, Trajectory, TreeBatch};
use tree_training_tests::forest::cases as proptest_cases;
use tree_training_tests::packing::Packing;
use tree_training_tests::step::read;

use crate::case::{
    Case, Original, batch, by_entry, cases, check_close, originals, spread_over_packs,
};
use crate::ppo::packings;

fn options() -> impl Strategy<Value = GspoOptions> {
    let clip = (0.0..0.3, 0.0..0.3).prop_map(|(low, high)| ClipRange { low, high });
    let kl = prop::option::of((0.0..1.0).prop_map(|coefficient| KlPenalty {
        coefficient,
        estimator: KlEstimator::K3,
    }));
    (
        clip,
        prop::option::of(0.5..1.5),
        kl,
        prop_oneof![Just(0.0), 0.0..0.1],
    )
        .prop_map(
            |(clip, sampling_cap, kl, entropy_coefficient)| GspoOptions {
                clip,
                sampling_cap,
                regularization: Regularization {
                    kl,
                    entropy_coefficient,
                },
            },
        )
}

/// Loss, gradients by original prediction and metrics.
type Outcome = (f64, Vec<(Original, f64)>, PolicyMetrics);

/// In one pass, each pack is collected directly before its loss; in two, all packs before any loss.
fn packed(
    case: &Case,
    step: &PackedStep,
    trajectories: &[Trajectory],
    options: &GspoOptions,
    one_pass: bool,
) -> Result<Outcome, LossInputError> {
    let mut gspo = Gspo::new(&step.trajectories, *options)?;
    if !one_pass {
        for pack in &step.packs {
            let head = case.head(step, pack, trajectories);
            gspo.try_collect(&head, &batch(pack).occurrences)?;
        }
    }
    let (mut loss, mut gradients) = (0.0, Vec::new());
    let mut metrics = PolicyMetrics::default();
    for pack in &step.packs {
        let head = case.head(step, pack, trajectories);
        let log_probs = head.log_probs.clone();
        let occurrences = batch(pack).occurrences;
        if one_pass {
            gspo.try_collect(&head, &occurrences)?;
        }
        let (pack_loss, pack_metrics) = gspo.try_loss(head, &occurrences)?;
        loss += read(&pack_loss)[0];
        metrics.merge(pack_metrics);
        let gradient = log_probs.grad(&pack_loss.backward()).expect("a gradient");
        gradients.extend(originals(step, pack).into_iter().zip(read(&gradient)));
    }
    Ok((loss, gradients, metrics))
}

pub fn by_trajectory(
    predictions: &BTreeMap<Original, Prediction>,
    trajectories: usize,
) -> Vec<Vec<Prediction>> {
    let mut of_trajectories = vec![Vec::new(); trajectories];
    for (&(r, _), prediction) in predictions {
        of_trajectories[r].push(*prediction);
    }
    of_trajectories
}

/// Derivatives of `loss` with respect to the log-probability of every prediction, from central
/// differences with a step of 1e-5.
pub fn slopes(
    predictions: &BTreeMap<Original, Prediction>,
    trajectories: usize,
    loss: impl Fn(&[Vec<Prediction>]) -> f64,
) -> Vec<(Original, f64)> {
    let keys: Vec<Original> = predictions.keys().copied().collect();
    let slope = |key: Original| {
        let at = |delta: f64| {
            let mut shifted = predictions.clone();
            shifted.get_mut(&key).expect("a key").log_prob += delta;
            loss(&by_trajectory(&shifted, trajectories))
        };
        (at(1e-5) - at(-1e-5)) / 2e-5
    };
    keys.into_iter().map(|key| (key, slope(key))).collect()
}

proptest! {
    #![proptest_config(proptest_cases(64))]

    /// One pass over whole trees, and two passes over trajectories in several packs, give the loss,
    /// the gradients and the metrics of the separate trajectories.
    #[test]
    fn both_passes_have_the_loss_and_gradients_of_separate_trajectories(
        case in cases(),
        options in options(),
        packing in packings(),
        aggregation in prop_oneof![Just(Aggregation::TrajectoryMean), Just(Aggregation::TokenMean)],
        parts in 2usize..5,
    ) {
        let trajectories = case.trajectories();
        let objective = Objective::PerOccurrence;
        let step = packing.pack_for(&trajectories, objective, aggregation, Gspo::LOSS_FORM);
        let predictions = case.predictions(&trajectories, objective, aggregation);
        let separate = by_trajectory(&predictions, trajectories.len());
        let near_kink = separate.iter().filter(|trajectory| !trajectory.is_empty()).any(|trajectory| {
            let ratio = reference::trajectory_ratio(trajectory);
            let bounds = [1.0 - options.clip.low, 1.0 + options.clip.high];
            bounds.into_iter().any(|bound| (ratio - bound).abs() < 1e-4)
        });
        prop_assume!(!near_kink);
        let loss = |trajectories: &[Vec<Prediction>]| reference::gspo_loss(trajectories, &options);
        let (expected, expected_slopes) = (
            loss(&separate),
            slopes(&predictions, trajectories.len(), loss),
        );
        let torn = spread_over_packs(&step, parts);
        for (step, one_pass) in [(&step, true), (&step, false), (&torn, false)] {
            let (loss, gradients, metrics) =
                packed(&case, step, &trajectories, &options, one_pass).unwrap();
            prop_assert!((loss - expected).abs() <= 1e-12 * (1.0 + expected.abs()), "{loss} {expected}");
            let entries = |values: Vec<(Original, f64)>| -> BTreeMap<_, _> {
                by_entry(values, step, &trajectories)
            };
            check_close(&entries(gradients), &entries(expected_slopes.clone()), 1e-6)?;

            let found = metrics.read();
            let count = predictions.len() as f64;
            prop_assert_eq!(found.predictions, count);
            let ClipRange { low, high } = options.clip;
            let (mut ratios, mut clipped) = (0.0, [0.0, 0.0]);
            for trajectory in separate.iter().filter(|trajectory| !trajectory.is_empty()) {
                let ratio = reference::trajectory_ratio(trajectory);
                ratios += ratio * trajectory.len() as f64;
                for p in trajectory {
                    clipped[0] += f64::from(u8::from(p.advantage < 0.0 && ratio < 1.0 - low));
                    clipped[1] += f64::from(u8::from(p.advantage > 0.0 && ratio > 1.0 + high));
                }
            }
            prop_assert!((found.ratio - ratios / count).abs() <= 1e-12 * (1.0 + found.ratio));
            prop_assert!((found.clip_fraction_low - clipped[0] / count).abs() <= 1e-12);
            prop_assert!((found.clip_fraction_high - clipped[1] / count).abs() <= 1e-12);
        }
    }

    /// There is no loss without the sums of whole trajectories, and a pack is collected once.
    #[test]
    fn incomplete_trajectories_are_refused(case in cases(), parts in 2usize..5) {
        let trajectories = case.trajectories();
        let (objective, mean) = (Objective::PerOccurrence, Aggregation::TrajectoryMean);
        let step = Packing::ONE_PACK.pack_for(&trajectories, objective, mean, Gspo::LOSS_FORM);
        let torn = spread_over_packs(&step, parts);
        let options = GspoOptions::default();
        let is_torn = torn.packs.len() > 1 && {
            let of_pack = |pack: usize, trajectory: u32| {
                torn.packs[pack].occurrences.trajectories.contains(&trajectory)
            };
            (0..torn.trajectories.len() as u32).any(|trajectory| {
                (0..torn.packs.len()).filter(|&pack| of_pack(pack, trajectory)).count() > 1
            })
        };
        let one_pass = packed(&case, &torn, &trajectories, &options, true);
        let refused = matches!(one_pass, Err(LossInputError::IncompleteTrajectory { .. }));
        prop_assert_eq!(refused, is_torn);

        let mut gspo = Gspo::new(&step.trajectories, options).unwrap();
        let pack = &step.packs[0];
        let head = case.head(&step, pack, &trajectories);
        let occurrences = batch(pack).occurrences;
        prop_assert!(gspo.try_loss(head.clone(), &occurrences).is_err());
        gspo.try_collect(&head, &occurrences).unwrap();
        let again = gspo.try_collect(&head, &occurrences);
        let refused = matches!(again, Err(LossInputError::IncompleteTrajectory { .. }));
        prop_assert!(refused);
        // The refused pack has not changed the sums.
        prop_assert!(gspo.try_loss(head, &occurrences).is_ok());
    }

    /// A step packed for a token loss may lack all predictions of some trajectories.
    #[test]
    fn steps_packed_for_another_loss_are_refused(case in cases()) {
        let trajectories = case.trajectories();
        let (objective, mean) = (Objective::PerOccurrence, Aggregation::TrajectoryMean);
        let form = LossForm::PerToken;
        let step = Packing::ONE_PACK.pack_for(&trajectories, objective, mean, form);
        let outcome = packed(&case, &step, &trajectories, &GspoOptions::default(), true);
        let (found, expected) = (form, Gspo::LOSS_FORM);
        prop_assert_eq!(outcome.unwrap_err(), LossInputError::LossForm { found, expected });
    }
}

#[test]
fn wrong_arguments_are_named() {
    let clip = ClipRange {
        low: -0.1,
        high: 0.1,
    };
    let options = GspoOptions {
        clip,
        ..GspoOptions::default()
    };
    let error = Gspo::new(&[], options).unwrap_err();
    assert_eq!(error.to_string(), "clip.low is -0.1, expected 0 to 1");

    let trajectories = [Trajectory::new("a", "b", vec![1, 2], vec![false, true])];
    let (objective, mean) = (Objective::PerOccurrence, Aggregation::TrajectoryMean);
    let step = Packing::ONE_PACK.pack_for(&trajectories, objective, mean, Gspo::LOSS_FORM);
    let batch = TreeBatch::new(&step.packs, &Device::flex());
    let log_probs = burn::tensor::Tensor::<1>::from_floats([-1.0], &Device::flex());
    let mut gspo = Gspo::new(&step.trajectories, GspoOptions::default()).unwrap();
    let head = TokenLogProbs::new(log_probs.clone(), None);
    let error = gspo.try_collect(&head, &batch.occurrences).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("the occurrences have no old log-probabilities"),
        "{text}"
    );

    // A pack of another step.
    let mut other = Gspo::new(&[], GspoOptions::default()).unwrap();
    let mut occurrences = batch.occurrences.clone();
    occurrences.old_log_probs = Some(log_probs.clone());
    occurrences.advantages = Some(log_probs.clone());
    let error = other.try_collect(&head, &occurrences).unwrap_err();
    let (trajectory, trajectories) = (0, 0);
    assert_eq!(
        error,
        LossInputError::ForeignTrajectory {
            trajectory,
            trajectories
        }
    );
}
