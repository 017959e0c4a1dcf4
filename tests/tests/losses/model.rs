//! Losses with models: the first epoch, and the two passes.

use burn::tensor::{DType, Tensor};
use burn_tree_models::CausalLm;
use burn_tree_nn::TokenLogProbs;
use burn_tree_train::losses::{
    ClipRange, Dpo, DpoOptions, Gspo, GspoOptions, PolicyMetrics, PpoOptions, ppo_loss,
};
use burn_tree_train::{StepGradients, StepOptions, step_forward, step_gradients};
use tree_pack::{
    Advantage, Aggregation, LossForm, Objective, OccurrenceBatch, PackOptions, PackedStep,
    Partitioning, PreferencePair, Trajectory, build_forests, pack_step,
};
use tree_training_tests::device::{autodiff_device, supports_f64};
use tree_training_tests::models::{dense_config, hybrid_config, moe_config, random_model};
use tree_training_tests::packing::Packing;
use tree_training_tests::step::read;
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

fn pack(trajectories: &[Trajectory], packing: Packing, loss: LossForm) -> PackedStep {
    let (objective, mean) = (Objective::PerOccurrence, Aggregation::TrajectoryMean);
    packing.pack_for(trajectories, objective, mean, loss)
}

/// Old log-probabilities from a forward pass without autodiff over the same packs equal those of
/// the training pass bit for bit: every ratio is 1, nothing is clipped, and the loss is the mean
/// advantage.
#[test]
fn the_first_epoch_has_ratios_of_one() {
    let device = autodiff_device();
    let configs = [dense_config, moe_config, hybrid_config];
    for config in configs.map(|config| config(VOCABULARY)) {
        let model = random_model(&config, 3, DType::F32, &device);
        let mut given = trajectories();
        for trajectory in &mut given {
            trajectory.old_log_probs = None;
        }
        // All equal, so shared tokens are merged and stay merged.
        let mut uniform = given.clone();
        for trajectory in &mut uniform {
            trajectory.advantage = Some(Advantage::Trajectory(0.5));
            trajectory.ref_log_probs = None;
        }
        let form = PpoOptions::LOSS_FORM;
        let recompute = StepOptions {
            recompute: true,
            ..StepOptions::default()
        };
        let connected = Partitioning::Connected;
        for (trajectories, merged, mut step, options) in [
            (
                &given,
                false,
                pack(&given, Packing::SMALL_PACKS, form),
                StepOptions::default(),
            ),
            (
                &uniform,
                true,
                pack(&uniform, Packing::ONE_PACK, form),
                StepOptions::default(),
            ),
            (&given, false, parts(&given, 7, connected, form), recompute),
        ] {
            assert_eq!(step.merged, merged);
            let log_probs = |_, head: TokenLogProbs, _: &OccurrenceBatch| head.log_probs;
            let old = step_forward(&model, &step, &options, &device, log_probs);
            for (pack, old) in step.packs.iter_mut().zip(old.expect("a valid step")) {
                let old = old.into_data().try_into_vec::<f32>().expect("f32");
                pack.occurrences.old_log_probs = Some(old);
            }
            let mut metrics = PolicyMetrics::default();
            let loss = |_, head: TokenLogProbs, occurrences: &OccurrenceBatch| {
                let (loss, of_pack) = ppo_loss(head, occurrences, &PpoOptions::default());
                metrics.merge(of_pack);
                loss
            };
            let StepGradients { losses, .. } =
                step_gradients(&model, &step, &options, &device, loss).expect("a valid step");
            let loss: f64 = losses.iter().map(|loss| read(loss)[0]).sum();
            let found = metrics.read();
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
            assert!((loss - expected).abs() < 1e-6, "{} {expected}", loss);
        }
    }
}

/// A loss in one pass or two.
trait TwoPasses {
    fn collect(&mut self, log_probs: &TokenLogProbs, occurrences: &OccurrenceBatch);
    fn loss(&self, head: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1>;
}

/// A loss without a first pass.
impl TwoPasses for PpoOptions {
    fn collect(&mut self, _: &TokenLogProbs, _: &OccurrenceBatch) {}

    fn loss(&self, head: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
        ppo_loss(head, occurrences, self).0
    }
}

impl TwoPasses for Gspo {
    fn collect(&mut self, log_probs: &TokenLogProbs, occurrences: &OccurrenceBatch) {
        self.collect(log_probs, occurrences);
    }

    fn loss(&self, head: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
        self.loss(head, occurrences).0
    }
}

impl TwoPasses for Dpo {
    fn collect(&mut self, log_probs: &TokenLogProbs, occurrences: &OccurrenceBatch) {
        self.collect(log_probs, occurrences);
    }

    fn loss(&self, head: TokenLogProbs, occurrences: &OccurrenceBatch) -> Tensor<1> {
        self.loss(head, occurrences)
    }
}

/// Loss and gradients with sums from a first pass without autodiff, or from the same pass.
fn run(
    model: &CausalLm,
    step: &PackedStep,
    options: &StepOptions,
    mut objective: impl TwoPasses,
    two: bool,
) -> (f64, NamedTensors) {
    let device = autodiff_device();
    if two {
        let collect = |_, head: TokenLogProbs, occurrences: &OccurrenceBatch| {
            objective.collect(&head, occurrences);
        };
        step_forward(model, step, options, &device, collect).expect("a valid step");
    }
    let loss = |_, head: TokenLogProbs, occurrences: &OccurrenceBatch| {
        if !two {
            objective.collect(&head, occurrences);
        }
        objective.loss(head, occurrences)
    };
    let StepGradients {
        losses, gradients, ..
    } = step_gradients(model, step, options, &device, loss).expect("a valid step");
    let loss = losses.iter().map(|loss| read(loss)[0]).sum();
    (loss, NamedTensors::gradients(model, &gradients))
}

/// One pass over one pack, and two passes over one pack per tree, one pack per trajectory, and
/// parts of trees give the same loss and gradients.
fn check_passes<T: TwoPasses>(start: impl Fn(&PackedStep) -> T) {
    if !supports_f64() {
        return;
    }
    let trajectories = trajectories();
    let flat = Packing {
        shared: false,
        ..Packing::SMALL_PACKS
    };
    let form = Gspo::LOSS_FORM;
    let plain = StepOptions::default();
    let recompute = StepOptions {
        recompute: true,
        ..StepOptions::default()
    };
    let configs = [dense_config, moe_config, hybrid_config];
    for config in configs.map(|config| config(VOCABULARY)) {
        let model = random_model(&config, 5, DType::F64, &autodiff_device());
        let whole = pack(&trajectories, Packing::ONE_PACK, form);
        let (expected, gradients) = run(&model, &whole, &plain, start(&whole), false);
        assert!(expected.abs() > 1e-3 && gradients.norm() > 1e-3);
        let others = [
            (pack(&trajectories, Packing::SMALL_PACKS, form), &plain),
            (pack(&trajectories, flat, form), &plain),
            (
                parts(&trajectories, 7, Partitioning::Connected, form),
                &plain,
            ),
            (
                parts(&trajectories, 7, Partitioning::Shared, form),
                &recompute,
            ),
            (
                parts(&trajectories, 1, Partitioning::Connected, form),
                &plain,
            ),
        ];
        for (step, options) in others {
            assert!(step.packs.len() > 1);
            let (loss, found) = run(&model, &step, options, start(&step), true);
            assert!((loss - expected).abs() <= 1e-10, "{loss} {expected}");
            let worst = found.worst(&gradients, 1e-3);
            // The tolerance of models in f64.
            assert!(worst.relative <= 1e-10, "{worst}");
        }
    }
}

/// The trees in parts of at most `budget` tokens.
fn parts(
    trajectories: &[Trajectory],
    budget: usize,
    partitioning: Partitioning,
    loss: LossForm,
) -> PackedStep {
    let options = PackOptions {
        aggregation: Aggregation::TrajectoryMean,
        loss,
        partitioning,
        ..PackOptions::new(budget)
    };
    let forests = build_forests(trajectories).expect("valid trajectories");
    pack_step(trajectories, &forests, &options).expect("a valid step")
}

#[test]
fn ppo_is_the_same_over_parts() {
    check_passes(|_| PpoOptions {
        clip: ClipRange {
            low: 0.05,
            high: 0.1,
        },
        ..PpoOptions::default()
    });
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
    // Pairs of a prefix and its continuation, duplicates, branches, and trajectories of two trees.
    let pairs = [(1, 0), (0, 3), (2, 0), (4, 2), (5, 4)]
        .map(|(chosen, rejected)| PreferencePair { chosen, rejected });
    let options = DpoOptions::default();
    check_passes(|step| Dpo::new(&step.trajectories, &pairs, options).expect("valid pairs"));
}
