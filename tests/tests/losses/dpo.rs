//! DPO: pairs at any depth of a tree, across trees and packs.

use std::collections::BTreeMap;

use burn::tensor::{DType, Tensor};
use burn_tree_nn::TokenLogProbs;
use burn_tree_train::losses::reference::{self, Prediction};
use burn_tree_train::losses::{Dpo, DpoOptions, LossInputError, PreferenceLoss};
use proptest::prelude::*;
use proptest::sample::Index;
use tree_pack::{Aggregation, Objective, PackedStep, PreferencePair, StepTrajectory, Trajectory};
use tree_training_tests::forest::cases as proptest_cases;
use tree_training_tests::packing::Packing;
use tree_training_tests::step::read;

use crate::case::{
    Case, Original, batch, by_entry, cases, check_close, device, originals, spread_over_packs,
};
use crate::gspo::{by_trajectory, slopes};
use crate::ppo::packings;

fn options() -> impl Strategy<Value = DpoOptions> {
    let loss = prop_oneof![
        2 => Just(PreferenceLoss::Sigmoid { label_smoothing: 0.0 }),
        1 => (0.0..0.5).prop_map(|label_smoothing| PreferenceLoss::Sigmoid { label_smoothing }),
        1 => Just(PreferenceLoss::Ipo),
    ];
    (0.05..1.0, loss).prop_map(|(beta, loss)| DpoOptions { beta, loss })
}

/// Random pairs of trajectories with trained tokens, in any tree.
fn pairs(trajectories: &[Trajectory], drawn: &[(Index, Index)]) -> Vec<PreferencePair> {
    let trained: Vec<usize> = (0..trajectories.len())
        .filter(|&r| trajectories[r].trained_tokens() > 0)
        .collect();
    let pairs = drawn.iter().map(|(chosen, rejected)| PreferencePair {
        chosen: *chosen.get(&trained),
        rejected: *rejected.get(&trained),
    });
    pairs.filter(|pair| pair.chosen != pair.rejected).collect()
}

/// Loss, gradients by original prediction, and the DPO object.
type Outcome = (f64, Vec<(Original, f64)>, Dpo);

fn packed(
    case: &Case,
    step: &PackedStep,
    trajectories: &[Trajectory],
    pairs: &[PreferencePair],
    options: &DpoOptions,
    one_pass: bool,
) -> Result<Outcome, LossInputError> {
    let mut dpo = Dpo::new(&step.trajectories, pairs, *options)?;
    if !one_pass {
        for pack in &step.packs {
            let head = case.head(step, pack, trajectories);
            dpo.try_collect(&head, &batch(pack).occurrences)?;
        }
    }
    let (mut loss, mut gradients) = (0.0, Vec::new());
    for pack in &step.packs {
        let head = case.head(step, pack, trajectories);
        let log_probs = head.log_probs.clone();
        let occurrences = batch(pack).occurrences;
        if one_pass {
            dpo.try_collect(&head, &occurrences)?;
        }
        let pack_loss = dpo.try_loss(head, &occurrences)?;
        loss += read(&pack_loss)[0];
        let gradient = log_probs.grad(&pack_loss.backward()).expect("a gradient");
        gradients.extend(originals(step, pack).into_iter().zip(read(&gradient)));
    }
    Ok((loss, gradients, dpo))
}

proptest! {
    #![proptest_config(proptest_cases(64))]

    /// One pass with every pair in one pack, and two passes over trajectories in several packs,
    /// give the loss and the gradients of the separate trajectories.
    #[test]
    fn both_passes_have_the_loss_and_gradients_of_separate_trajectories(
        case in cases(),
        drawn in prop::collection::vec(any::<(Index, Index)>(), 1..6),
        options in options(),
        packing in packings(),
        parts in 2usize..5,
    ) {
        let trajectories = case.trajectories();
        let pairs = pairs(&trajectories, &drawn);
        prop_assume!(!pairs.is_empty());
        // The weights have no effect.
        let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::Sum);
        let whole = Packing { budget: None, ..packing };
        let whole = whole.pack_for(&trajectories, objective, aggregation, Dpo::LOSS_FORM);
        let step = packing.pack_for(&trajectories, objective, aggregation, Dpo::LOSS_FORM);
        let torn = spread_over_packs(&step, parts);

        let predictions = case.predictions(&trajectories, objective, aggregation);
        let separate = by_trajectory(&predictions, trajectories.len());
        let indices: Vec<_> = pairs.iter().map(|pair| (pair.chosen, pair.rejected)).collect();
        let loss = |separate: &[Vec<Prediction>]| reference::dpo_loss(separate, &indices, &options);
        let (expected, expected_slopes) =
            (loss(&separate), slopes(&predictions, trajectories.len(), loss));
        for (step, one_pass) in [(&whole, true), (&step, false), (&torn, false)] {
            let (loss, gradients, dpo) =
                packed(&case, step, &trajectories, &pairs, &options, one_pass).unwrap();
            prop_assert!((loss - expected).abs() <= 1e-11 * (1.0 + expected.abs()), "{loss} {expected}");
            let entries = |values: Vec<(Original, f64)>| -> BTreeMap<_, _> {
                by_entry(values, step, &trajectories)
            };
            check_close(&entries(gradients), &entries(expected_slopes.clone()), 1e-6)?;

            let found = dpo.statistics().unwrap();
            let sum = |r: usize| reference::log_ratio_to_reference(&separate[r]);
            let count = pairs.len() as f64;
            let mean = |value: &dyn Fn(&PreferencePair) -> f64| {
                pairs.iter().map(value).sum::<f64>() / count
            };
            prop_assert_eq!(found.pairs, pairs.len());
            let expected = [
                (found.loss, expected),
                (found.accuracy, mean(&|p| f64::from(u8::from(sum(p.chosen) > sum(p.rejected))))),
                (found.reward_margin, options.beta * mean(&|p| sum(p.chosen) - sum(p.rejected))),
                (found.chosen_reward, options.beta * mean(&|p| sum(p.chosen))),
                (found.rejected_reward, options.beta * mean(&|p| sum(p.rejected))),
            ];
            for (index, (found, expected)) in expected.into_iter().enumerate() {
                let close = (found - expected).abs() <= 1e-11 * (1.0 + expected.abs());
                prop_assert!(close, "statistic {index}: {found} instead of {expected}");
            }
        }
    }
}

/// A trajectory paired with its duplicate: all tokens cancel, the loss is ln 2.
#[test]
fn tokens_of_both_trajectories_cancel() {
    let trajectories = [0, 1].map(|number| Trajectory {
        ref_log_probs: Some(vec![-0.5; 2]),
        ..Trajectory::new("a", number.to_string(), vec![1, 2, 3], vec![true; 3])
    });
    let (objective, sum) = (Objective::PerOccurrence, Aggregation::Sum);
    let step = Packing::ONE_PACK.pack_for(&trajectories, objective, sum, Dpo::LOSS_FORM);
    let pair = PreferencePair {
        chosen: 0,
        rejected: 1,
    };
    let mut dpo = Dpo::new(&step.trajectories, &[pair], DpoOptions::default()).unwrap();
    let occurrences = batch(&step.packs[0]).occurrences;
    let log_probs = (occurrences.targets.clone().float() * -0.3).cast(DType::F64);
    let log_probs = log_probs.detach().require_grad();
    let head = TokenLogProbs::new(log_probs.clone(), None);
    dpo.collect(&head, &occurrences);
    let loss = dpo.loss(head, &occurrences);
    assert!((read(&loss)[0] - 2.0f64.ln()).abs() < 1e-12);
    let gradient = read(&log_probs.grad(&loss.backward()).expect("a gradient"));
    assert_eq!(gradient.iter().sum::<f64>(), 0.0);
    assert!(
        gradient
            .iter()
            .all(|value| (value.abs() - 0.05).abs() < 1e-12)
    );
}

#[test]
fn wrong_arguments_are_named() {
    let step = [(4, 3), (7, 2), (9, 0)].map(|(data_index, trained_tokens)| StepTrajectory {
        task_id: "t".into(),
        rollout_id: data_index.to_string(),
        segment: 0,
        data_index,
        trained_tokens,
    });
    let error = |chosen, rejected, options| {
        let pair = PreferencePair { chosen, rejected };
        Dpo::new(&step, &[pair], options).unwrap_err().to_string()
    };
    let default = DpoOptions::default();
    assert_eq!(
        error(4, 5, default),
        "of the pair 4 over 5 (indices in the data set), only one is in the step"
    );
    assert_eq!(
        error(4, 4, default),
        "the pair 4 over 4 (indices in the data set): both trajectories are the same"
    );
    assert_eq!(
        error(9, 4, default),
        "the pair 9 over 4 (indices in the data set): a trajectory has no trained token"
    );
    assert_eq!(
        error(1, 2, default),
        "no pair of trajectories of the step was given"
    );
    let beta = DpoOptions {
        beta: 0.0,
        ..default
    };
    assert_eq!(
        error(4, 7, beta),
        "beta is 0, expected a finite number above 0"
    );
    let loss = PreferenceLoss::Sigmoid {
        label_smoothing: 0.6,
    };
    assert_eq!(
        error(4, 7, DpoOptions { loss, ..default }),
        "label_smoothing is 0.6, expected 0 to 0.5"
    );
    let pair = PreferencePair {
        chosen: 4,
        rejected: 7,
    };
    let dpo = Dpo::new(&step, &[pair], default).unwrap();
    assert!(matches!(
        dpo.statistics(),
        Err(LossInputError::IncompleteTrajectory { .. })
    ));
}

/// Trajectories in no pair need not be collected; those in pairs must be.
#[test]
fn only_pairs_have_to_be_complete() {
    let trajectories = [3, 4, 5, 6].map(|token| Trajectory {
        ref_log_probs: Some(vec![-0.5; 3]),
        ..Trajectory::new(
            "a",
            token.to_string(),
            vec![1, 2, token, token],
            vec![true; 4],
        )
    });
    let (objective, sum) = (Objective::PerOccurrence, Aggregation::Sum);
    let step = Packing::ONE_PACK.pack_for(&trajectories, objective, sum, Dpo::LOSS_FORM);
    let torn = spread_over_packs(&step, 5);
    let holds = |pack: &tree_pack::Pack, wanted: &[u32]| {
        let mut trajectories = pack.occurrences.trajectories.iter();
        trajectories.any(|trajectory| wanted.contains(trajectory))
    };
    let pair = PreferencePair {
        chosen: 0,
        rejected: 1,
    };
    let mut dpo = Dpo::new(&step.trajectories, &[pair], DpoOptions::default()).unwrap();
    let head = |pack: &tree_pack::Pack| {
        let log_probs = Tensor::full([pack.occurrences.len()], -0.7, (&device(), DType::F64));
        TokenLogProbs::new(log_probs, None)
    };
    for pack in &torn.packs {
        let loss = dpo.try_loss(head(pack), &batch(pack).occurrences);
        match holds(pack, &[0, 1]) {
            true => assert!(loss.is_err()),
            false => assert_eq!(read(&loss.unwrap()), [0.0]),
        }
    }
    // Trajectories in no pair are not collected.
    for pack in torn.packs.iter().filter(|pack| holds(pack, &[0, 1])) {
        dpo.collect(&head(pack), &batch(pack).occurrences);
    }
    let losses = torn.packs.iter().map(|pack| {
        let loss = dpo.loss(head(pack), &batch(pack).occurrences);
        read(&loss)[0]
    });
    assert!((losses.sum::<f64>() - 2.0f64.ln()).abs() < 1e-12);
}
