//! A run: its folder, checkpoint to resume, training loop and final report.

pub mod atomic;
pub mod checkpoint;
pub mod log_probs;
pub mod model_source;
pub mod settings;
pub mod setup;
pub mod variant;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use burn::tensor::{Device, FloatDType};
use indicatif::{ProgressBar, ProgressStyle};
use tree_pack::PackedStep;

use crate::loss::TrainingLoss;
use crate::memory::{format_bytes, index_memory, peak_memory};
use crate::optim::adamw::adamw;
use crate::optim::optimizer_step::Trainer;
use crate::options::{RunArgs, ValidationArgs};
use crate::plan::schedule::Schedule;
use crate::plan::sharing::{ChosenSharing, Memory, print_prediction};
use crate::plan::{Plans, Sharing, StepPlan};
use crate::report;
use crate::report::metrics::{MetricsLog, StepRecord};
use crate::report::summary;
use crate::report::timing::{Repetitions, product_rate};
use crate::run::checkpoint::RunState;
use crate::run::settings::Settings;
use crate::run::setup::Setup;
use crate::run::variant::{TimePrediction, Variant, compare};
use burn_tree_models::{CausalLm, ModelConfig};

/// A training run with its output folder.
pub struct Run<'a> {
    args: &'a RunArgs,
    setup: &'a Setup,
    schedule: Schedule,
    settings: Settings,
    output: PathBuf,
    resumed: Option<PathBuf>,
    completed_steps: usize,
    metrics: MetricsLog,
    records: Vec<StepRecord>,
    gemm: GemmRate,
}

/// The validation of a run.
pub struct Validation<L> {
    /// All validation tasks as one step.
    pub step: PackedStep,
    /// The loss.
    pub loss: L,
    /// Steps between evaluations; 0 evaluates at the end only.
    pub every: usize,
}

impl<L> Validation<L> {
    /// Validation on all tasks of `plan`, if there is one.
    ///
    /// # Errors
    /// If they cannot be packed.
    pub fn new(plan: Option<&StepPlan>, loss: L, args: &ValidationArgs) -> Result<Option<Self>> {
        let step = plan.map(StepPlan::all_packs).transpose()?;
        Ok(step.map(|step| Self {
            step,
            loss,
            every: args.validate_every,
        }))
    }
}

impl<'a> Run<'a> {
    /// Creates the folder of a run of `program`, or finds the checkpoint to resume.
    ///
    /// # Errors
    /// If the checkpoint to resume does not exist, its settings differ, or the folder holds another
    /// run or cannot be written.
    pub fn start(
        program: &str,
        args: &'a RunArgs,
        setup: &'a Setup,
        schedule: Schedule,
        settings: Settings,
    ) -> Result<Self> {
        let resume = args.output.resume.as_deref();
        let resumed = resume.map(checkpoint::find).transpose()?;
        let mut completed_steps = 0;
        if let Some(checkpoint) = &resumed {
            let state = checkpoint::load_state(checkpoint)?;
            state.check_settings(&settings)?;
            if let Some(checkpoints) = checkpoint.parent() {
                atomic::remove_unfinished(checkpoints)
                    .with_context(|| checkpoints.display().to_string())?;
            }
            completed_steps = state.completed_steps;
        }
        let output = output_folder(program, args, resumed.as_deref())?;
        let (metrics, records) =
            MetricsLog::resume(&output.join("metrics.jsonl"), completed_steps)?;
        if let Some(ids) = &setup.original_ids {
            // Entry k is the tokenizer's id of the model's id k.
            atomic::write(
                &output.join("original_token_ids.json"),
                &serde_json::to_vec(ids)?,
            )?;
        }
        println!("Output: {}", output.display());
        let dtype = args.model.compute_dtype.dtype();
        Ok(Self {
            gemm: GemmRate::measure(&setup.config, dtype, &setup.device),
            args,
            setup,
            schedule,
            settings,
            output,
            resumed,
            completed_steps,
            metrics,
            records,
        })
    }

    /// Steps completed before the run was resumed.
    pub fn completed_steps(&self) -> usize {
        self.completed_steps
    }

    /// A trainer of the `initial` model, or of the model in the checkpoint to resume.
    ///
    /// # Errors
    /// If the checkpoint cannot be loaded.
    pub fn trainer(&self, initial: CausalLm) -> Result<Trainer<CausalLm>> {
        let device = &self.setup.device;
        let mut model = initial;
        if let Some(checkpoint) = &self.resumed {
            model = checkpoint::load_model(checkpoint, model)?;
        }
        let mut optimizer = adamw(&model, &self.args.steps.adamw(), device);
        if let Some(checkpoint) = &self.resumed {
            optimizer = checkpoint::load_optimizer(checkpoint, optimizer)?;
        }
        let max_norm = self.args.steps.max_grad_norm;
        Ok(Trainer {
            model,
            optimizer,
            max_gradient_norm: (max_norm > 0.0).then_some(max_norm),
            precision: self.args.model.precision(),
            options: self.args.step_options(),
            device: device.clone(),
        })
    }

    /// The variants selected by the options, each with its own copy of the trainer.
    ///
    /// # Errors
    /// With `--sharing auto`, if steps cannot be timed or a task does not fit.
    pub fn variants<L: TrainingLoss + Clone>(
        &self,
        plans: &Plans,
        loss: &L,
        trainer: &Trainer<CausalLm>,
    ) -> Result<Vec<Variant<CausalLm, L>>> {
        let sharings = self.args.comparison.sharings();
        let chosen = match sharings.contains(&Sharing::Auto) {
            true => Some(self.chosen_sharing(plans, trainer)?),
            false => None,
        };
        let prediction = chosen.as_ref().map(|chosen| TimePrediction {
            time: chosen.step_time(),
            recurrent: self.setup.config.is_hybrid(),
        });
        let variant = |&sharing: &Sharing| {
            let plan = match (sharing, &chosen) {
                (Sharing::Auto, Some(chosen)) => chosen.plan(plans),
                (Sharing::Flat, _) => plans.flat.clone(),
                (Sharing::Tree | Sharing::Auto, _) => plans.tree.clone(),
            };
            let cost = self.setup.size.cost;
            Variant::new(plan, loss.clone(), trainer.clone(), cost).with_prediction(prediction)
        };
        let variants: Vec<_> = sharings.iter().map(variant).collect();
        let first_step = variants[0].plan.packs(0)?.packs;
        let recurrent = self.setup.config.is_hybrid();
        if let Some(memory) = index_memory(&first_step, recurrent, &trainer.device) {
            println!(
                "Masks, plans and indices of the largest pack of the first step: {} on the device, \
                 {} on the host",
                format_bytes(memory.device_bytes),
                format_bytes(memory.host_bytes),
            );
        }
        Ok(variants)
    }

    /// Trees or separate trajectories for each task. A resumed run keeps its choices.
    fn chosen_sharing(&self, plans: &Plans, trainer: &Trainer<CausalLm>) -> Result<ChosenSharing> {
        let chosen = match self.resumed {
            Some(_) => ChosenSharing::load(&self.output, plans)?,
            None => {
                let memory = Memory {
                    config: &self.setup.config,
                    size: &self.setup.size,
                    run: self.args.memory_options(),
                    device_bytes: self.args.comparison.device_bytes(),
                };
                let chosen = ChosenSharing::new(plans, trainer, &memory)?;
                chosen.save(&self.output)?;
                chosen
            }
        };
        chosen.print();
        Ok(chosen)
    }

    /// Computes the reference log-probabilities of all data for every variant, on packs of its own
    /// plan, and prints the elapsed time.
    ///
    /// # Errors
    /// If the trajectories cannot be packed.
    pub fn compute_reference<L: TrainingLoss>(
        &self,
        variants: &mut [Variant<CausalLm, L>],
        reference: &Trainer<CausalLm>,
    ) -> Result<()> {
        for variant in variants {
            let seconds = variant.compute_reference(reference)?;
            let on = match variant.sharing() {
                Sharing::Tree | Sharing::Auto => "trees",
                Sharing::Flat => "separate trajectories",
            };
            println!("Reference log-probabilities, on {on}: {seconds:.2} s");
        }
        Ok(())
    }

    /// Computes the remaining steps, each with all variants, with validation, metrics and
    /// checkpoints in between.
    ///
    /// # Errors
    /// If a step fails or a file cannot be written.
    pub fn train<L: TrainingLoss>(
        &mut self,
        variants: &mut [Variant<CausalLm, L>],
        validation: Option<&Validation<L>>,
    ) -> Result<()> {
        let total_steps = self.schedule.total_steps;
        let mut scheduler = self.schedule.init(self.completed_steps)?;
        let progress = progress_bar(total_steps, self.completed_steps);
        let mut checkpoint_due = false;
        for step in self.completed_steps..total_steps {
            let learning_rate = scheduler.step();
            let position = variants[0].plan.position(step);
            let mut record = StepRecord {
                step: step + 1,
                epoch: position.epoch + 1,
                learning_rate: learning_rate.base(),
                tree: None,
                flat: None,
                comparison: None,
                validation_loss: None,
            };
            for variant in &mut *variants {
                let result = variant.step(step, learning_rate.clone())?;
                match variant.sharing() {
                    Sharing::Tree | Sharing::Auto => record.tree = Some(result),
                    Sharing::Flat => record.flat = Some(result),
                }
            }
            record.comparison = compare(&record, &self.setup.size.cost);
            if step == self.completed_steps {
                let names = variants[0].without_gradient();
                progress.suspend(|| summary::print_without_gradient(names));
            }

            let last = step + 1 == total_steps;
            let due = |every: usize| last || (every > 0 && (step + 1).is_multiple_of(every));
            let trainer = &variants[0].trainer;
            if let Some(validation) = validation
                && due(validation.every)
            {
                let Validation { step, loss, .. } = validation;
                let (loss, _) = trainer.evaluate(step, loss)?;
                record.validation_loss = Some(loss);
            }
            self.metrics.write(&record)?;
            let every = self.args.output.checkpoint_every;
            checkpoint_due |= every > 0 && due(every);
            // A checkpoint does not contain the state at the beginning of a batch of several steps.
            if checkpoint_due && (position.ends_batch || last) {
                self.save(step + 1, trainer)?;
                checkpoint_due = false;
            }
            progress.suspend(|| println!("{}", report::step_line(&record, total_steps, L::SHOWN)));
            progress.inc(1);
            self.records.push(record);
        }
        progress.finish_and_clear();
        Ok(())
    }

    fn save(&self, completed_steps: usize, trainer: &Trainer<CausalLm>) -> Result<()> {
        let state = RunState::new(completed_steps, self.settings.clone());
        let keep = self.args.output.keep_checkpoints.get();
        let folder = self.output.join("checkpoints");
        checkpoint::save(&folder, &state, &trainer.model, &trainer.optimizer, keep)?;
        Ok(())
    }

    /// Plots the curves, prints throughput and the comparison, and exports the model.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn finish<L: TrainingLoss>(&self, variants: &[Variant<CausalLm, L>]) -> Result<()> {
        summary::draw(&self.output, &self.records, L::SHOWN)?;
        summary::print_result(&self.records, &self.setup.size.cost, &self.gemm);
        print_prediction(&self.records);
        if let Some(peak) = peak_memory() {
            println!("Peak memory of the process: {}", format_bytes(peak));
        }
        self.setup.export(self.args, &variants[0].trainer.model)
    }
}

/// The rate of a matrix product of the shape that blocks have: the reference for the throughput of
/// steps.
pub struct GemmRate {
    /// Rows, inner dimension and columns.
    pub shape: [usize; 3],
    /// FLOP/s.
    pub rate: f64,
}

impl GemmRate {
    fn measure(config: &ModelConfig, dtype: FloatDType, device: &Device) -> Self {
        let inner = config.intermediate_size.max(config.hidden_size);
        let shape = [4096, config.hidden_size, inner];
        let repetitions = Repetitions {
            warm_up: 2,
            samples: 5,
            runs: 1,
        };
        let rate = product_rate(&device.clone().inner(), shape, dtype, repetitions);
        Self { shape, rate }
    }
}

/// The folder of the resumed run, the given folder, or a new one under `runs`.
fn output_folder(program: &str, args: &RunArgs, resumed: Option<&Path>) -> Result<PathBuf> {
    let folder = match (resumed, &args.output.output) {
        // <output>/checkpoints/step-…
        (Some(checkpoint), _) => {
            let folder = checkpoint.canonicalize()?;
            let output = folder.parent().and_then(Path::parent);
            return output
                .map(Path::to_owned)
                .context("the checkpoint is not in a run's folder");
        }
        (None, Some(folder)) => {
            if folder.join("metrics.jsonl").exists() {
                bail!(
                    "--output {}: the folder holds another run; continue it with --resume, or \
                     choose another folder",
                    folder.display()
                );
            }
            folder.clone()
        }
        (None, None) => (1..)
            .map(|number| PathBuf::from(format!("runs/{program}-{number:03}")))
            .find(|folder| !folder.exists())
            .context("no free folder name under runs")?,
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("--output {}", folder.display()))?;
    Ok(folder)
}

fn progress_bar(total_steps: usize, completed_steps: usize) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{bar:40} {pos}/{len} steps, {elapsed} elapsed, {eta} to go");
    let bar = ProgressBar::new(total_steps as u64)
        .with_style(style.expect("the template is valid"))
        .with_position(completed_steps as u64);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
