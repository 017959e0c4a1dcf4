//! Recorded values of reference models: log-probabilities, losses, gradients, and the loss after a
//! step of gradient descent. One test for each model, case and kind of run.
//!
//! `TREE_FIXTURES` names another folder of the same format. Models with unsupported architectures
//! are listed as ignored, with the reason.

use std::cell::RefCell;
use std::collections::BTreeMap;

use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_tree_models::weights::hf_gradients;
use burn_tree_models::{CausalLm, ConfigError, ModelConfig};
use burn_tree_nn::TokenLogProbs;
use burn_tree_train::losses::{
    ClipRange, KlEstimator, KlPenalty, PolicyMetrics, PpoOptions, Regularization, ppo_loss,
};
use burn_tree_train::{StepOptions, sft_loss};
use libtest_mimic::{Arguments, Failed, Trial};
use tree_pack::{
    Aggregation, LossForm, Objective, OccurrenceBatch, PackedStep, Partitioning, Trajectory,
};
use tree_training_tests::device::{autodiff_device, device_name};
use tree_training_tests::fixture::{Case, Counts, ModelFolder, PolicyObjective, Tolerances};
use tree_training_tests::oracle::loss::prediction_weights;
use tree_training_tests::packing::Packing;
use tree_training_tests::partition::{Cut, parts_step_with};
use tree_training_tests::policy::{PolicyInputs, PolicyLoss, column};
use tree_training_tests::step::{
    Batching, Prediction, Step, packed_step, read, separate_step, separate_step_with,
};
use tree_training_tests::tensors::{HostTensor, NamedTensors, Tolerance};

/// The fixtures are f32 values.
const DTYPE: DType = DType::F32;

/// Name of the policy loss; the others are supervised.
const POLICY: &str = "grpo";

/// A kind of run.
#[derive(Clone, Copy, Debug)]
enum Run {
    /// Each trajectory separately.
    Alone,
    /// Packed; even and odd trajectories may be two tasks, which share nothing.
    Packed {
        packing: Packing,
        two_tasks: bool,
        batching: Batching,
    },
    /// In parts that continue each other.
    Parts(Cut),
}

const RUNS: [(&str, Run); 6] = [
    ("alone", Run::Alone),
    (
        "packed",
        Run::Packed {
            packing: Packing::ONE_PACK,
            two_tasks: false,
            batching: Batching::OneByOne,
        },
    ),
    (
        "flat_in_small_packs",
        Run::Packed {
            packing: Packing {
                shared: false,
                ..Packing::SMALL_PACKS
            },
            two_tasks: false,
            batching: Batching::OneByOne,
        },
    ),
    (
        "two_tasks_in_two_packs",
        Run::Packed {
            packing: Packing::SMALL_PACKS,
            two_tasks: true,
            batching: Batching::OneByOne,
        },
    ),
    (
        "two_tasks_in_one_padded_batch",
        Run::Packed {
            packing: Packing {
                multiple: 48,
                ..Packing::SMALL_PACKS
            },
            two_tasks: true,
            batching: Batching::Together,
        },
    ),
    (
        "parts_of_trees",
        Run::Parts(Cut::new(20, Partitioning::Connected)),
    ),
];

fn main() {
    let arguments = Arguments::from_args();
    let trials = ModelFolder::all()
        .into_iter()
        .flat_map(trials_of_model)
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn trials_of_model(model: ModelFolder) -> Vec<Trial> {
    let config = match ModelConfig::from_file(&model.path) {
        Ok(config) => config,
        Err(error @ ConfigError::Unsupported { .. }) => {
            let name = format!("{}: {error}", model.name);
            return vec![Trial::test(name, || Ok(())).with_ignored_flag(true)];
        }
        Err(error) => {
            let fail = move || Err(Failed::from(error.to_string()));
            return vec![Trial::test(format!("{}: config.json", model.name), fail)];
        }
    };
    let mut trials = Vec::new();
    for case in &model.cases {
        for (name, run) in RUNS {
            let (model, config, case) = (model.clone(), config.clone(), case.clone());
            let name = format!("{}::{case}::{name}", model.name);
            trials.push(Trial::test(name, move || {
                Check::new(&model, &config, &case, run).and_then(|check| check.all())?;
                Ok(())
            }));
        }
    }
    trials
}

struct Check {
    folder: ModelFolder,
    case_name: String,
    case: Case,
    run: Run,
    trajectories: Vec<Trajectory>,
    model: CausalLm,
    device: Device,
    tolerances: Tolerances,
}

impl Check {
    fn new(
        folder: &ModelFolder,
        config: &ModelConfig,
        case_name: &str,
        run: Run,
    ) -> Result<Self, String> {
        let device = autodiff_device();
        let case = folder.case(case_name);
        let two_tasks = matches!(
            run,
            Run::Packed {
                two_tasks: true,
                ..
            }
        );
        let trajectories = case.trajectories(|index| match two_tasks {
            true => format!("task-{}", index % 2),
            false => "task".to_owned(),
        });
        let model = CausalLm::load_weights(config, &folder.path, FloatDType::from(DTYPE), &device)
            .map_err(|error| error.to_string())?;
        Ok(Self {
            folder: folder.clone(),
            case_name: case_name.to_owned(),
            case,
            run,
            trajectories,
            model,
            device,
            tolerances: Tolerances::of(&folder.model_type, case_name),
        })
    }

    fn all(&self) -> Result<(), String> {
        self.counts()?;
        self.log_probs()?;
        self.losses()?;
        self.gradients_and_step()
    }

    fn counts(&self) -> Result<(), String> {
        let Run::Packed {
            packing,
            two_tasks: false,
            ..
        } = self.run
        else {
            return Ok(());
        };
        let totals = packing
            .pack(
                &self.trajectories,
                Objective::PerOccurrence,
                Aggregation::Sum,
            )
            .totals;
        let found = Counts {
            flat_tokens: totals.tokens as usize,
            unique_tokens: totals.unique_tokens as usize,
            trained_occurrences: totals.trained_tokens as usize,
            trained_unique: totals.unique_trained_tokens as usize,
        };
        let expected = self.case.expected.counts;
        ensure(found == expected, || {
            format!("counts {found:?}, expected {expected:?}")
        })
    }

    /// Every prediction, including untrained ones.
    fn log_probs(&self) -> Result<(), String> {
        let mut trajectories = self.trajectories.clone();
        for trajectory in &mut trajectories {
            trajectory.loss_mask.fill(true);
        }
        let step = self.supervised(
            &self.model,
            &trajectories,
            Objective::PerOccurrence,
            Aggregation::Sum,
            LossForm::PerTrajectory,
        );
        let logp = &self.case.expected.logp;
        let expected: Vec<Prediction> = (0..logp.len())
            .flat_map(|trajectory| {
                let values = logp[trajectory].iter().zip(1..);
                values.map(move |(&log_prob, token)| Prediction {
                    trajectory,
                    token,
                    log_prob,
                })
            })
            .collect();
        let tolerance = self.tolerances.log_prob;
        tree_training_tests::step::check_predictions(&step.predictions, &expected, tolerance)
            .map_err(|error| format!("log-probability of {error}"))?;
        Ok(())
    }

    fn losses(&self) -> Result<(), String> {
        let mut compared = 0;
        for name in self.case.expected.losses.keys() {
            if name.starts_with(POLICY) {
                continue;
            }
            let (objectives, aggregation): (&[Objective], _) = match name.as_str() {
                "sep_avg" => (&SHARED_WEIGHTS, Aggregation::SepAvg),
                "sep_avg_tokenmean" => (&SHARED_WEIGHTS, Aggregation::TrajectoryMean),
                "token_mean" => (&SHARED_WEIGHTS, Aggregation::TokenMean),
                "weighted_token_mean" => (&SHARED_WEIGHTS, Aggregation::WeightedTokenMean),
                "unique" if self.counts_unique() => (&[Objective::Unique], Aggregation::UniqueMean),
                // Two tasks count a common token twice.
                "unique" => continue,
                other => return Err(format!("the loss {other} is not known")),
            };
            for &objective in objectives {
                let loss = self.supervised(
                    &self.model,
                    &self.trajectories,
                    objective,
                    aggregation,
                    LossForm::LogLikelihood,
                );
                self.check_loss(name, loss.loss)?;
            }
            compared += 1;
        }
        if let Some(objective) = self.case.objective {
            let (_, parts) = self.policy(&self.model, objective);
            for (name, value) in parts {
                self.check_loss(name, value)?;
            }
        }
        ensure(compared >= 3, || {
            format!("only {compared} losses were compared")
        })
    }

    fn counts_unique(&self) -> bool {
        !matches!(
            self.run,
            Run::Packed {
                two_tasks: true,
                ..
            }
        )
    }

    fn check_loss(&self, name: &str, found: f64) -> Result<(), String> {
        let expected = *self
            .case
            .expected
            .losses
            .get(name)
            .ok_or_else(|| format!("the case has no loss {name}"))?;
        let allowed = self.tolerances.loss * (1.0 + expected.abs());
        ensure((found - expected).abs() <= allowed, || {
            format!("loss {name} {found}, expected {expected}")
        })
    }

    fn gradients_and_step(&self) -> Result<(), String> {
        let expected = &self.case.expected;
        let step = self.trained_loss(&self.model)?;
        let recorded = self.folder.gradients(&self.case_name);
        let gradients = self.in_file_layout(&step.gradients, &recorded)?;
        let tolerance = Tolerance {
            relative: self.tolerances.gradient,
            floor: 0.0,
            // Experts without tokens.
            exact_zeros: true,
        };
        let norm = (recorded.norm() - expected.grad_norm).abs() / expected.grad_norm;
        ensure(norm < 1e-6, || {
            "the recorded gradients do not have the recorded norm".to_owned()
        })?;
        gradients
            .check(&recorded, tolerance)
            .map_err(|error| format!("gradients: {error}"))?;

        ensure(expected.sgd.loss == expected.grad_loss, || {
            "another loss after the step".into()
        })?;
        let model =
            SgdConfig::new()
                .init()
                .step(expected.sgd.lr, self.model.clone(), step.gradients);
        let after = self.trained_loss(&model)?.loss;
        let difference = (after - expected.sgd.after).abs();
        ensure(difference <= self.tolerances.after_step, || {
            format!(
                "loss after the step {after}, expected {}",
                expected.sgd.after
            )
        })
    }

    /// The loss of the recorded gradients.
    fn trained_loss(&self, model: &CausalLm) -> Result<Step, String> {
        match (self.case.expected.grad_loss.as_str(), self.case.objective) {
            ("token_mean", _) => Ok(self.supervised(
                model,
                &self.trajectories,
                Objective::PerPath,
                Aggregation::TokenMean,
                LossForm::LogLikelihood,
            )),
            (POLICY, Some(objective)) => Ok(self.policy(model, objective).0),
            (other, _) => Err(format!("the gradients of {other} cannot be computed")),
        }
    }

    fn supervised(
        &self,
        model: &CausalLm,
        trajectories: &[Trajectory],
        objective: Objective,
        aggregation: Aggregation,
        form: LossForm,
    ) -> Step {
        match self.run {
            Run::Alone => {
                let weights = prediction_weights(trajectories, objective, aggregation);
                separate_step(model, trajectories, &weights, DTYPE, &self.device)
            }
            Run::Packed { .. } | Run::Parts(_) => {
                let packed = self.pack(trajectories, objective, aggregation, form);
                self.run_packed(model, &packed, sft_loss)
            }
        }
    }

    fn pack(
        &self,
        trajectories: &[Trajectory],
        objective: Objective,
        aggregation: Aggregation,
        form: LossForm,
    ) -> PackedStep {
        match self.run {
            Run::Packed { packing, .. } => {
                packing.pack_for(trajectories, objective, aggregation, form)
            }
            Run::Parts(cut) => cut.pack_for(trajectories, objective, aggregation, form),
            Run::Alone => panic!("sequences alone are not packed"),
        }
    }

    fn run_packed(
        &self,
        model: &CausalLm,
        packed: &PackedStep,
        loss: impl Fn(TokenLogProbs, &OccurrenceBatch) -> Tensor<1>,
    ) -> Step {
        match self.run {
            Run::Packed { batching, .. } => {
                packed_step(model, packed, batching, DTYPE, &self.device, loss)
            }
            Run::Parts(_) => {
                let options = StepOptions::default();
                parts_step_with(model, packed, &options, &self.device, loss)
            }
            Run::Alone => panic!("sequences alone are not packed"),
        }
    }

    /// The policy loss and its terms by name.
    fn policy(
        &self,
        model: &CausalLm,
        objective: PolicyObjective,
    ) -> (Step, BTreeMap<&'static str, f64>) {
        match self.run {
            Run::Alone => self.policy_alone(model, objective),
            Run::Packed { .. } | Run::Parts(_) => self.policy_packed(model, objective),
        }
    }

    /// Each sequence separately, with plain tensor operations.
    fn policy_alone(
        &self,
        model: &CausalLm,
        objective: PolicyObjective,
    ) -> (Step, BTreeMap<&'static str, f64>) {
        let parts = RefCell::new(BTreeMap::new());
        let (per_occurrence, mean) = (Objective::PerOccurrence, Aggregation::TokenMean);
        let weights = prediction_weights(&self.trajectories, per_occurrence, mean);
        let step = separate_step_with(model, &self.trajectories, &self.device, |index| {
            let trajectory = &self.trajectories[index];
            let tokens: Vec<usize> = (1..trajectory.len())
                .filter(|&t| trajectory.is_trained(t))
                .collect();
            let values = |value: &dyn Fn(usize) -> f64| {
                column(
                    tokens.iter().map(|&t| value(t)).collect(),
                    DTYPE,
                    &self.device,
                )
            };
            let input = |value: Option<f32>| f64::from(value.expect("an input"));
            let inputs = PolicyInputs {
                advantages: values(&|t| input(trajectory.advantage_of(t))),
                old: values(&|t| input(trajectory.old_log_prob_of(t))),
                reference: values(&|t| input(trajectory.ref_log_prob_of(t))),
                weights: values(&|t| weights[index][t - 1]),
            };
            let parts = &parts;
            (tokens, move |log_probs| {
                let loss = PolicyLoss::new(log_probs, &inputs, objective);
                let mut parts = parts.borrow_mut();
                *parts.entry("grpo").or_insert(0.0) += read(&loss.total(objective))[0];
                *parts.entry("grpo_pg").or_insert(0.0) += read(&loss.surrogate)[0];
                *parts.entry("grpo_k3").or_insert(0.0) += read(&loss.divergence)[0];
                *parts.entry("grpo_clip_frac").or_insert(0.0) += loss.clipped;
                loss.total(objective)
            })
        });
        (step, parts.into_inner())
    }

    fn policy_packed(
        &self,
        model: &CausalLm,
        objective: PolicyObjective,
    ) -> (Step, BTreeMap<&'static str, f64>) {
        let surrogate = PpoOptions {
            clip: ClipRange::symmetric(objective.clip_eps),
            ..PpoOptions::default()
        };
        let kl = KlPenalty {
            coefficient: objective.kl_coef,
            estimator: KlEstimator::K3,
        };
        let options = PpoOptions {
            regularization: Regularization {
                kl: Some(kl),
                ..Regularization::default()
            },
            ..surrogate
        };
        let (per_occurrence, mean) = (Objective::PerOccurrence, Aggregation::TokenMean);
        let form = PpoOptions::LOSS_FORM;
        let packed = self.pack(&self.trajectories, per_occurrence, mean, form);
        let metrics = RefCell::new(PolicyMetrics::default());
        let surrogates = RefCell::new(0.0);
        let loss = |head: TokenLogProbs, columns: &OccurrenceBatch| {
            let part = ppo_loss(head.clone(), columns, &surrogate).0;
            *surrogates.borrow_mut() += read(&part)[0];
            let (loss, of_pack) = ppo_loss(head, columns, &options);
            metrics.borrow_mut().merge(of_pack);
            loss
        };
        let step = self.run_packed(model, &packed, loss);
        let metrics = metrics.into_inner().read();
        let parts = BTreeMap::from([
            ("grpo", step.loss),
            ("grpo_pg", surrogates.into_inner()),
            ("grpo_k3", metrics.ref_kl.expect("there is a reference")),
            (
                "grpo_clip_frac",
                metrics.clip_fraction_low + metrics.clip_fraction_high,
            ),
        ]);
        (step, parts)
    }

    /// The gradients by key in the layout of the weights' file; zero without a gradient.
    fn in_file_layout(
        &self,
        gradients: &GradientsParams,
        recorded: &NamedTensors,
    ) -> Result<NamedTensors, String> {
        let zeros = |tensor: &HostTensor| HostTensor {
            values: vec![0.0; tensor.values.len()],
            ..tensor.clone()
        };
        let shapes = recorded
            .0
            .iter()
            .map(|(key, tensor)| (key.clone(), zeros(tensor)));
        let mut tensors: BTreeMap<_, _> = shapes.collect();
        for tensor in hf_gradients(&self.model, gradients).map_err(|error| error.to_string())? {
            let data = tensor.to_data(FloatDType::F64);
            let values = data
                .try_into_vec::<f64>()
                .map_err(|error| error.to_string())?;
            let host = HostTensor {
                shape: tensor.shape().to_vec(),
                values,
            };
            // Keys that were not recorded are kept and reported by the comparison.
            tensors.insert(tensor.key().to_owned(), host);
        }
        Ok(NamedTensors(tensors))
    }
}

/// Both must have the same weights: merging equal occurrences changes nothing.
const SHARED_WEIGHTS: [Objective; 2] = [Objective::PerPath, Objective::PerOccurrence];

fn ensure(holds: bool, error: impl FnOnce() -> String) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(format!("{} on {}", error(), device_name()))
    }
}
