//! The clipped surrogate: loss, gradients and metrics.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};
use burn_tree_nn::TokenLogProbs;
use burn_tree_train::losses::reference::{self, Prediction};
use burn_tree_train::losses::{
    ClipRange, KlEstimator, KlPenalty, LossInputError, PolicyMetrics, PpoOptions, Regularization,
    ppo_loss, try_ppo_loss,
};
use proptest::prelude::*;
use tree_pack::{
    Advantage, Aggregation, LossForm, Objective, PackError, PackOptions, PackedStep, Trajectory,
    TreeBatch, build_forests, pack_step,
};
use tree_training_tests::forest::cases as proptest_cases;
use tree_training_tests::packing::Packing;
use tree_training_tests::step::read;

use crate::case::{Case, Original, batch, by_entry, cases, check_close, originals};

fn options() -> impl Strategy<Value = PpoOptions> {
    let clip = (0.0..0.5, 0.0..0.5).prop_map(|(low, high)| ClipRange { low, high });
    let estimator = prop_oneof![
        Just(KlEstimator::K1),
        Just(KlEstimator::K2),
        Just(KlEstimator::K3)
    ];
    let kl = (0.0..1.0, estimator).prop_map(|(coefficient, estimator)| KlPenalty {
        coefficient,
        estimator,
    });
    (
        clip,
        prop::option::of(1.1..2.0),
        prop::option::of(0.5..1.5),
        prop::option::of(kl),
        prop_oneof![Just(0.0), 0.0..0.1],
    )
        .prop_map(
            |(clip, dual_clip, sampling_cap, kl, entropy_coefficient)| PpoOptions {
                clip,
                dual_clip,
                sampling_cap,
                regularization: Regularization {
                    kl,
                    entropy_coefficient,
                },
            },
        )
}

pub fn packings() -> impl Strategy<Value = Packing> {
    (Packing::strategy(), any::<bool>()).prop_map(|(packing, shared)| Packing { shared, ..packing })
}

/// Loss, gradients by original prediction and metrics of a packed step.
fn packed(
    case: &Case,
    step: &PackedStep,
    trajectories: &[Trajectory],
    options: &PpoOptions,
) -> (f64, [Vec<(Original, f64)>; 2], PolicyMetrics) {
    let mut loss = 0.0;
    let mut gradients = [Vec::new(), Vec::new()];
    let mut metrics = PolicyMetrics::default();
    for pack in &step.packs {
        let head = case.head(step, pack, trajectories);
        let leaves = [head.log_probs.clone(), head.entropy.clone().expect("given")];
        let (pack_loss, pack_metrics) = ppo_loss(head, &batch(pack).occurrences, options);
        loss += read(&pack_loss)[0];
        metrics.merge(pack_metrics);
        let computed = pack_loss.backward();
        for (leaf, gradients) in leaves.iter().zip(&mut gradients) {
            let values = match leaf.grad(&computed) {
                Some(gradient) => read(&gradient),
                None => vec![0.0; leaf.dims()[0]],
            };
            gradients.extend(originals(step, pack).into_iter().zip(values));
        }
    }
    (loss, gradients, metrics)
}

/// Whether a prediction is too close to a kink of the loss for finite differences.
fn near_kink(prediction: &Prediction, options: &PpoOptions) -> bool {
    let bounds = [1.0 - options.clip.low, 1.0 + options.clip.high];
    let bounds = bounds.into_iter().chain(options.dual_clip);
    bounds
        .into_iter()
        .any(|bound| (prediction.ratio() - bound).abs() < 1e-4)
}

proptest! {
    #![proptest_config(proptest_cases(128))]

    /// Loss and gradients equal those of the separate trajectories for any sharing, packing and
    /// merging.
    ///
    /// Tolerances: sums of f64 in another order, and second-order errors of central differences
    /// over 2e-5.
    #[test]
    fn packs_have_the_loss_and_gradients_of_separate_trajectories(
        case in cases(),
        options in options(),
        packing in packings(),
        aggregation in prop_oneof![
            Just(Aggregation::TokenMean),
            Just(Aggregation::TrajectoryMean),
            Just(Aggregation::ConstantLength(50.0)),
        ],
    ) {
        let trajectories = case.trajectories();
        let objective = Objective::PerOccurrence;
        let step = packing.pack_for(&trajectories, objective, aggregation, PpoOptions::LOSS_FORM);
        let (loss, [gradients, entropy_gradients], _) = packed(&case, &step, &trajectories, &options);

        let predictions = case.predictions(&trajectories, objective, aggregation);
        let expected = reference::ppo_loss(predictions.values(), &options);
        prop_assert!((loss - expected).abs() <= 1e-12 * (1.0 + expected.abs()), "{loss} {expected}");

        let slope = |prediction: &Prediction, shift: fn(&mut Prediction, f64)| {
            let at = |delta: f64| {
                let mut shifted = *prediction;
                shift(&mut shifted, delta);
                reference::ppo_loss([&shifted], &options)
            };
            (at(1e-5) - at(-1e-5)) / 2e-5
        };
        let kinks: Vec<Original> = predictions
            .iter()
            .filter(|(_, prediction)| near_kink(prediction, &options))
            .map(|(&original, _)| original)
            .collect();
        prop_assume!(kinks.is_empty());
        let slopes = |shift: fn(&mut Prediction, f64)| {
            predictions.iter().map(move |(&original, p)| (original, slope(p, shift)))
        };
        let entries = |values: Vec<(Original, f64)>| by_entry(values, &step, &trajectories);
        let expected = slopes(|prediction, delta| prediction.log_prob += delta).collect();
        check_close(&entries(gradients), &entries(expected), 1e-7)?;
        let expected = slopes(|prediction, delta| prediction.entropy += delta).collect();
        check_close(&entries(entropy_gradients), &entries(expected), 1e-7)?;
    }

    /// Metrics are averages over the original predictions, independent of sharing, packing, merging
    /// and the weights of the loss.
    #[test]
    fn metrics_are_averages_over_original_predictions(
        case in cases(),
        options in options(),
        packing in packings(),
    ) {
        let trajectories = case.trajectories();
        let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::TrajectoryMean);
        let step = packing.pack_for(&trajectories, objective, aggregation, PpoOptions::LOSS_FORM);
        let found = packed(&case, &step, &trajectories, &options).2.read();

        let predictions = case.predictions(&trajectories, objective, aggregation);
        let count = predictions.len() as f64;
        let mean = |value: &dyn Fn(&Prediction) -> f64| {
            predictions.values().map(value).sum::<f64>() / count
        };
        let share = |holds: &dyn Fn(&Prediction) -> bool| mean(&|p| f64::from(u8::from(holds(p))));
        let ClipRange { low, high } = options.clip;
        let estimator = options.regularization.kl.map_or(KlEstimator::K3, |kl| kl.estimator);
        let untruncated = |p: &Prediction| p.sampling_weight(Some(f64::INFINITY));
        let expected = [
            (found.predictions, count),
            (found.advantage, mean(&|p| p.advantage)),
            (found.ratio, mean(&Prediction::ratio)),
            (found.ratio_max, predictions.values().map(Prediction::ratio).fold(0.0, f64::max)),
            (found.clip_fraction_low, share(&|p| p.advantage < 0.0 && p.ratio() < 1.0 - low)),
            (found.clip_fraction_high, share(&|p| p.advantage > 0.0 && p.ratio() > 1.0 + high)),
            (found.dual_clip_fraction, share(&|p| {
                options.dual_clip.is_some_and(|dual| p.advantage < 0.0 && p.ratio() > dual)
            })),
            (found.old_kl, mean(&|p| p.ratio() - p.ratio().ln() - 1.0)),
            (found.ref_kl.unwrap(), mean(&|p| p.kl(estimator))),
            (found.entropy.unwrap(), mean(&|p| p.entropy)),
        ];
        for (index, (found, expected)) in expected.into_iter().enumerate() {
            let close = (found - expected).abs() <= 1e-12 * (1.0 + expected.abs());
            prop_assert!(close, "metric {index}: {found} instead of {expected}");
        }
        prop_assert_eq!(found.sampling_weight.is_some(), options.sampling_cap.is_some());
        if let Some(cap) = options.sampling_cap {
            let weight = mean(&|p| p.sampling_weight(Some(cap)));
            prop_assert!((found.sampling_weight.unwrap() - weight).abs() <= 1e-12 * weight);
            let truncated = share(&|p| untruncated(p) > cap);
            prop_assert!((found.sampling_truncated.unwrap() - truncated).abs() <= 1e-12);
        }
    }
}

fn two_samples() -> Vec<Trajectory> {
    [(3, 1.0), (4, -1.0)]
        .map(|(token, advantage)| Trajectory {
            advantage: Some(Advantage::Trajectory(advantage)),
            old_log_probs: Some(vec![-1.0, -0.7]),
            ..Trajectory::new("task", "run", vec![1, 2, token], vec![false, true, true])
        })
        .to_vec()
}

fn step_of(
    trajectories: &[Trajectory],
    objective: Objective,
    loss: LossForm,
) -> Result<PackedStep, PackError> {
    let forests = build_forests(trajectories).expect("valid trajectories");
    let options = PackOptions {
        objective,
        loss,
        ..PackOptions::new(1024)
    };
    pack_step(trajectories, &forests, &options)
}

fn uniform_head(length: usize, log_prob: f64) -> TokenLogProbs {
    let log_probs = Tensor::full([length], log_prob, &Device::flex().autodiff());
    TokenLogProbs::new(log_probs.require_grad(), None)
}

/// Occurrences of a shared token with different advantages cannot be merged in a clipped loss.
#[test]
fn merging_what_differs_is_refused() {
    let trajectories = two_samples();
    let merged = step_of(&trajectories, Objective::PerPath, PpoOptions::LOSS_FORM);
    let error = merged.unwrap_err().to_string();
    assert!(error.contains("advantage is 1 and -1"), "{error}");
    let separate = step_of(
        &trajectories,
        Objective::PerOccurrence,
        PpoOptions::LOSS_FORM,
    );
    assert_eq!(separate.unwrap().packs[0].occurrences.len(), 4);
}

/// A step packed for a linear loss was merged independently of the inputs, even if they are set
/// afterwards.
#[test]
fn a_step_packed_for_another_loss_is_refused() {
    for loss in [LossForm::LogLikelihood, LossForm::AdvantageWeighted] {
        let step = step_of(&two_samples(), Objective::PerOccurrence, loss).unwrap();
        assert!(step.merged);
        let mut step = step;
        for pack in &mut step.packs {
            let column = Some(vec![-1.0; pack.occurrences.len()]);
            pack.occurrences.advantages.clone_from(&column);
            pack.occurrences.old_log_probs = column;
        }
        let batch = TreeBatch::new(&step.packs, &Device::flex().autodiff());
        let head = uniform_head(3, -1.0);
        let error = try_ppo_loss(head, &batch.occurrences, &PpoOptions::default()).unwrap_err();
        assert_eq!(
            error,
            LossInputError::LossForm {
                found: loss,
                expected: LossForm::PerToken
            }
        );
    }
}

#[test]
fn wrong_arguments_are_named() {
    let step = step_of(
        &two_samples(),
        Objective::PerOccurrence,
        PpoOptions::LOSS_FORM,
    )
    .unwrap();
    let batch = TreeBatch::new(&step.packs, &Device::flex().autodiff());
    let error = |length, options: PpoOptions| {
        let head = uniform_head(length, -1.0);
        try_ppo_loss(head, &batch.occurrences, &options)
            .unwrap_err()
            .to_string()
    };
    let default = PpoOptions::default();
    assert_eq!(
        error(3, default),
        "log-probabilities: got 3 entries, expected 4, one for each occurrence"
    );
    let clip = ClipRange {
        low: 1.5,
        high: 0.2,
    };
    assert_eq!(
        error(4, PpoOptions { clip, ..default }),
        "clip.low is 1.5, expected 0 to 1"
    );
    let clip = ClipRange {
        low: 0.2,
        high: f64::NAN,
    };
    assert_eq!(
        error(4, PpoOptions { clip, ..default }),
        "clip.high is NaN, expected a finite number of at least 0"
    );
    let dual_clip = Some(1.0);
    assert_eq!(
        error(
            4,
            PpoOptions {
                dual_clip,
                ..default
            }
        ),
        "dual_clip is 1, expected a finite number above 1"
    );
    let sampling_cap = Some(2.0);
    let text = error(
        4,
        PpoOptions {
            sampling_cap,
            ..default
        },
    );
    assert!(
        text.starts_with("the occurrences have no sampling log-probabilities"),
        "{text}"
    );
    let kl = Some(KlPenalty {
        coefficient: 0.1,
        estimator: KlEstimator::K3,
    });
    let regularization = Regularization {
        kl,
        ..Regularization::default()
    };
    let text = error(
        4,
        PpoOptions {
            regularization,
            ..default
        },
    );
    assert!(
        text.starts_with("the occurrences have no reference log-probabilities"),
        "{text}"
    );
    let regularization = Regularization {
        entropy_coefficient: 0.1,
        kl: None,
    };
    let text = error(
        4,
        PpoOptions {
            regularization,
            ..default
        },
    );
    assert!(
        text.starts_with("the log-probabilities lack entropy"),
        "{text}"
    );
    // An entropy without gradient would make the bonus ineffective.
    let mut head = uniform_head(4, -1.0);
    head.entropy = Some(head.log_probs.clone().inner());
    let options = PpoOptions {
        regularization,
        ..default
    };
    let text = try_ppo_loss(head, &batch.occurrences, &options)
        .unwrap_err()
        .to_string();
    assert!(text.contains("lack a gradient of the entropy"), "{text}");
}

/// Ratios that overflow are clipped without NaN in the gradient; without an advantage they have no
/// effect.
#[test]
fn ratios_that_overflow_are_clipped() {
    let mut trajectories = two_samples();
    for (trajectory, advantage) in trajectories.iter_mut().zip([1.0, 0.0]) {
        trajectory.old_log_probs = Some(vec![-500.0; 2]);
        trajectory.advantage = Some(Advantage::Trajectory(advantage));
    }
    let step = step_of(
        &trajectories,
        Objective::PerOccurrence,
        PpoOptions::LOSS_FORM,
    )
    .unwrap();
    let batch = TreeBatch::new(&step.packs, &Device::flex().autodiff());
    let head = uniform_head(4, -1.0);
    let log_probs = head.log_probs.clone();
    let (loss, metrics) = ppo_loss(head, &batch.occurrences, &PpoOptions::default());
    // Two of four predictions have an advantage.
    assert!((read(&loss)[0] + 0.6).abs() < 1e-6);
    let gradient = log_probs.grad(&loss.backward()).expect("a gradient");
    assert_eq!(read(&gradient), [0.0; 4]);
    let found = metrics.read();
    assert_eq!(
        (found.clip_fraction_high, found.ratio_max),
        (0.5, f64::INFINITY)
    );
}

/// Without trained tokens: a differentiable loss of 0, and empty metrics.
#[test]
fn a_pack_without_predictions_has_no_loss() {
    let mut trajectories = two_samples();
    for trajectory in &mut trajectories {
        trajectory.loss_mask.fill(false);
    }
    let step = step_of(
        &trajectories,
        Objective::PerOccurrence,
        PpoOptions::LOSS_FORM,
    )
    .unwrap();
    let batch = TreeBatch::new(&step.packs, &Device::flex().autodiff());
    let head = uniform_head(0, -1.0);
    let (loss, metrics) = ppo_loss(head, &batch.occurrences, &PpoOptions::default());
    assert_eq!(read(&loss), [0.0]);
    loss.backward();
    let found = metrics.read();
    assert_eq!(
        (found.predictions, found.ratio, found.entropy),
        (0.0, 0.0, None)
    );
}

/// Metrics that only some packs have would be averages over those packs.
#[test]
fn metrics_of_some_packs_only_are_not_reported() {
    let step = step_of(
        &two_samples(),
        Objective::PerOccurrence,
        PpoOptions::LOSS_FORM,
    )
    .unwrap();
    let batch = TreeBatch::new(&step.packs, &Device::flex().autodiff());
    let with_entropy = |given: bool| {
        let mut head = uniform_head(4, -1.0);
        head.entropy = given.then(|| head.log_probs.clone());
        ppo_loss(head, &batch.occurrences, &PpoOptions::default()).1
    };
    let mut metrics = with_entropy(true);
    metrics.merge(PolicyMetrics::default());
    assert_eq!(metrics.read().entropy, Some(-1.0));
    metrics.merge(with_entropy(false));
    assert_eq!(metrics.read().entropy, None);
    assert_eq!(metrics.read().predictions, 8.0);
}

/// Checks the reference on values computed by hand.
#[test]
fn the_reference_is_the_formula() {
    let prediction = |ratio: f64, advantage: f64| Prediction {
        weight: 0.5,
        log_prob: ratio.ln() - 1.0,
        old_log_prob: -1.0,
        ref_log_prob: ratio.ln() - 1.0,
        advantage,
        ..Prediction::default()
    };
    let mut options = PpoOptions::default();
    let values = BTreeMap::from([
        ("inside", (prediction(1.1, 2.0), -1.1)),
        ("clipped high", (prediction(1.5, 2.0), -1.2)),
        (
            "too high to gain, but it loses",
            (prediction(1.5, -2.0), 1.5),
        ),
        ("clipped low", (prediction(0.5, -2.0), 0.8)),
        ("beyond the dual clip", (prediction(9.0, -2.0), 3.0)),
    ]);
    options.dual_clip = Some(3.0);
    for (name, (prediction, expected)) in values {
        let loss = reference::ppo_loss([&prediction], &options);
        assert!((loss - expected).abs() < 1e-12, "{name}: {loss} {expected}");
    }
}
