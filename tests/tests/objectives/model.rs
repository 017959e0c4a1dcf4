//! Objectives with models: the first epoch, and the two passes.

use std::cell::RefCell;

use burn::module::Module;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_tree_train::objectives::{
    ClipRange, Dpo, DpoOptions, Gspo, GspoOptions, PolicyMetrics, PpoOptions, ppo_loss,
};
use burn_tree_train::{LmHeadOptions, TokenLogProbs};
use tree_pack::{
    Advantage, Aggregation, Objective, OccurrenceBatch, PackedStep, PreferencePair, Trajectory,
    TreeBatch,
};
use tree_training_examples::qwen3::Qwen3;
use tree_training_tests::device::{autodiff_device, supports_f64};
use tree_training_tests::models::{dense_config, hybrid_config, random_model};
use tree_training_tests::packing::Packing;
use tree_training_tests::step::{Batching, log_probs, packed_step};
use tree_training_tests::tensors::NamedTensors;

const VOCABULARY: usize = 17;

/// Two trees, with a strict prefix, a duplicate, shared trained tokens and single-token nodes.
fn trajectories() -> Vec<Trajectory> {
    let long: Vec<u32> = (0..30).map(|t| t * t % 13).collect();
    let tokens = [
        ("a", long.clone()),
        ("a", long[..20].to_vec()),
        ("a", [&long[..12], &[14, 15, 16]].concat()),
        ("a", long.clone()),
        ("b", vec![1, 2, 3, 4]),
        ("b", vec![1, 2, 5]),
    ];
    let trajectory = |(index, (task, tokens)): (usize, (&str, Vec<u32>))| {
        let mask = (0..tokens.len()).map(|t| t > 1 && (t + index) % 5 != 0);
        let rows = tokens.len() - 1;
        let column = |scale: f32| -> Vec<f32> {
            let values = (0..rows).map(|t| -2.8 + scale * ((index * 31 + t) as f32).sin());
            values.collect()
        };
        Trajectory {
            advantage: Some(Advantage::Trajectory([1.0, -1.0, 0.5, 2.0][index % 4])),
            old_log_probs: Some(column(0.1)),
            ref_log_probs: Some(column(0.4)),
            ..Trajectory::new(task, format!("{index}"), tokens.clone(), mask.collect())
        }
    };
    tokens.into_iter().enumerate().map(trajectory).collect()
}

fn pack(trajectories: &[Trajectory], packing: Packing, loss: tree_pack::LossForm) -> PackedStep {
    let (objective, mean) = (Objective::PerOccurrence, Aggregation::TrajectoryMean);
    packing.pack_for(trajectories, objective, mean, loss)
}

/// Old log-probabilities of a forward pass without autodiff over the same packs are those of the
/// training pass to the last bit: every ratio is 1, nothing is clipped, and the loss is the mean
/// advantage.
#[test]
fn the_first_epoch_has_ratios_of_one() {
    let device = autodiff_device();
    for config in [dense_config(VOCABULARY), hybrid_config(VOCABULARY)] {
        let model = random_model(&config, 3, DType::F32, &device);
        let mut given = trajectories();
        for trajectory in &mut given {
            trajectory.old_log_probs = None;
        }
        // All the same: shared tokens are merged, and stay so.
        let mut uniform = given.clone();
        for trajectory in &mut uniform {
            trajectory.advantage = Some(Advantage::Trajectory(0.5));
            trajectory.ref_log_probs = None;
        }
        for (trajectories, merged, packing) in [
            (&given, false, Packing::SMALL_PACKS),
            (&uniform, true, Packing::ONE_PACK),
        ] {
            let mut step = pack(trajectories, packing, PpoOptions::LOSS_FORM);
            assert_eq!(step.merged, merged);
            let frozen = model.valid();
            for pack in &mut step.packs {
                let inner = device.clone().inner();
                let batch = TreeBatch::new(std::slice::from_ref(pack), &inner);
                let old = log_probs(&frozen, &batch, LmHeadOptions::default());
                let old = old.into_data().try_into_vec::<f32>().expect("f32");
                pack.occurrences.old_log_probs = Some(old);
            }
            let metrics = RefCell::new(PolicyMetrics::default());
            let loss = |log_probs: Tensor<1>, occurrences: &OccurrenceBatch| {
                let head = TokenLogProbs {
                    log_probs,
                    entropy: None,
                };
                let (loss, of_pack) = ppo_loss(head, occurrences, &PpoOptions::default());
                metrics.borrow_mut().merge(of_pack);
                loss
            };
            let run = packed_step(&model, &step, Batching::OneByOne, DType::F32, &device, loss);
            let found = metrics.into_inner().read();
            assert_eq!(
                (found.ratio, found.ratio_max, found.old_kl),
                (1.0, 1.0, 0.0)
            );
            assert_eq!(
                (found.clip_fraction_low, found.clip_fraction_high),
                (0.0, 0.0)
            );
            let trained = step.totals.trained_tokens as f64;
            assert_eq!(found.predictions, trained);
            let advantages: f64 = trajectories
                .iter()
                .map(|t| f64::from(t.advantage_of(1).expect("given")))
                .sum();
            let expected = -advantages / trajectories.len() as f64;
            assert!(
                (run.loss - expected).abs() < 1e-6,
                "{} {expected}",
                run.loss
            );
        }
    }
}

/// What both objectives of trajectories offer.
trait TwoPasses {
    fn collect(&mut self, log_probs: &Tensor<1>, occurrences: &OccurrenceBatch);
    fn loss(&self, head: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1>;
}

impl TwoPasses for Gspo {
    fn collect(&mut self, log_probs: &Tensor<1>, occurrences: &OccurrenceBatch) {
        self.collect(log_probs, occurrences);
    }

    fn loss(&self, head: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
        self.loss(head, occurrences).0
    }
}

impl TwoPasses for Dpo {
    fn collect(&mut self, log_probs: &Tensor<1>, occurrences: &OccurrenceBatch) {
        self.collect(log_probs, occurrences);
    }

    fn loss(&self, head: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
        self.loss(head, occurrences)
    }
}

/// Loss and gradients with the sums of a first pass, which has no autodiff, or of the same pass.
fn run(
    model: &Qwen3,
    step: &PackedStep,
    mut objective: impl TwoPasses,
    two: bool,
) -> (f64, NamedTensors) {
    let device = autodiff_device();
    if two {
        let frozen = model.valid();
        for pack in &step.packs {
            let inner = device.clone().inner();
            let packs = std::slice::from_ref(pack);
            let batch = TreeBatch::with_dtype(packs, &inner, FloatDType::F64);
            let log_probs = log_probs(&frozen, &batch, LmHeadOptions::default());
            objective.collect(&log_probs, &batch.occurrences);
        }
    }
    let objective = RefCell::new(objective);
    let loss = |log_probs: Tensor<1>, occurrences: &OccurrenceBatch| {
        if !two {
            objective.borrow_mut().collect(&log_probs, occurrences);
        }
        let head = TokenLogProbs {
            log_probs,
            entropy: None,
        };
        objective.borrow().loss(head, occurrences)
    };
    let run = packed_step(model, step, Batching::OneByOne, DType::F64, &device, loss);
    (run.loss, NamedTensors::gradients(model, &run.gradients))
}

/// One pass over one pack, two passes over a pack for each tree, and two over a pack for each
/// trajectory give the same loss and gradients.
fn check_passes<T: TwoPasses>(start: impl Fn(&PackedStep) -> T) {
    if !supports_f64() {
        return;
    }
    let trajectories = trajectories();
    let flat = Packing {
        shared: false,
        ..Packing::SMALL_PACKS
    };
    for config in [dense_config(VOCABULARY), hybrid_config(VOCABULARY)] {
        let model = random_model(&config, 5, DType::F64, &autodiff_device());
        let step = |packing| pack(&trajectories, packing, Gspo::LOSS_FORM);
        let whole = step(Packing::ONE_PACK);
        let (expected, gradients) = run(&model, &whole, start(&whole), false);
        assert!(expected.abs() > 1e-3 && gradients.norm() > 1e-3);
        for packing in [Packing::SMALL_PACKS, flat] {
            let step = step(packing);
            assert!(step.packs.len() > 1);
            let (loss, found) = run(&model, &step, start(&step), true);
            assert!((loss - expected).abs() <= 1e-10, "{loss} {expected}");
            let worst = found.worst(&gradients, 1e-3);
            // The bar of models in f64.
            assert!(worst.relative <= 1e-10, "{worst}");
        }
    }
}

#[test]
fn gspo_needs_two_passes_only_for_several_packs() {
    let options = GspoOptions {
        clip: ClipRange {
            low: 0.05,
            high: 0.1,
        },
        ..GspoOptions::default()
    };
    check_passes(|step| Gspo::new(&step.trajectories, options).expect("valid options"));
}

#[test]
fn dpo_needs_two_passes_only_for_several_packs() {
    // A prefix over its continuation, duplicates, branches, and trajectories of two trees.
    let pairs = [(1, 0), (0, 3), (2, 0), (4, 2), (5, 4)]
        .map(|(chosen, rejected)| PreferencePair { chosen, rejected });
    let options = DpoOptions::default();
    check_passes(|step| Dpo::new(&step.trajectories, &pairs, options).expect("valid pairs"));
}
