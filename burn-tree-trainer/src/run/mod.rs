//! A run: its folder, where it starts, its training loop, and what it reports at the end.

pub mod atomic;
pub mod checkpoint;
pub mod log_probs;
pub mod model_source;
pub mod pass;
pub mod settings;
pub mod setup;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use burn::tensor::{Device, FloatDType};
use indicatif::{ProgressBar, ProgressStyle};
use tree_pack::PackedStep;

use crate::memory::{format_bytes, index_memory, peak_memory};
use crate::objective::Objective;
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
use crate::run::pass::{Pass, Prediction, compare};
use crate::run::settings::Settings;
use crate::run::setup::Setup;
use burn_tree_models::{CausalLm, ModelConfig};

/// A run in its folder.
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

/// What a run validates on.
pub struct Validation<O> {
    /// All validation tasks as one step.
    pub step: PackedStep,
    /// The objective on them.
    pub objective: O,
    /// Steps from one evaluation to the next; 0 for only at the end.
    pub every: usize,
}

impl<O> Validation<O> {
    /// Validation on all tasks of `plan`, if there is one.
    ///
    /// # Errors
    /// If they cannot be packed.
    pub fn new(
        plan: Option<&StepPlan>,
        objective: O,
        args: &ValidationArgs,
    ) -> Result<Option<Self>> {
        let step = plan.map(StepPlan::all_packs).transpose()?;
        Ok(step.map(|step| Self {
            step,
            objective,
            every: args.validate_every,
        }))
    }
}

impl<'a> Run<'a> {
    /// Finds or makes the folder of a run of `program`, and where in the run it is to go on.
    ///
    /// # Errors
    /// If there is nothing to resume, the settings are not those of the run to resume, or the
    /// folder holds another run or cannot be written.
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

    /// Steps made before, by the run that is resumed.
    pub fn completed_steps(&self) -> usize {
        self.completed_steps
    }

    /// A trainer of `initial`, the model that training begins with, or of what the run to be
    /// resumed has made of it.
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

    /// The passes that the options ask for, each with its own copy of the trainer.
    ///
    /// # Errors
    /// With `--sharing auto`, if steps cannot be timed or a task does not fit.
    pub fn passes<O: Objective + Clone>(
        &self,
        plans: &Plans,
        objective: &O,
        trainer: &Trainer<CausalLm>,
    ) -> Result<Vec<Pass<CausalLm, O>>> {
        let sharings = self.args.comparison.sharings();
        let chosen = match sharings.contains(&Sharing::Auto) {
            true => Some(self.chosen_sharing(plans, trainer)?),
            false => None,
        };
        let prediction = chosen.as_ref().map(|chosen| Prediction {
            time: chosen.step_time(),
            recurrent: self.setup.config.is_hybrid(),
        });
        let pass = |&sharing: &Sharing| {
            let plan = match (sharing, &chosen) {
                (Sharing::Auto, Some(chosen)) => chosen.plan(plans),
                (Sharing::Flat, _) => plans.flat.clone(),
                (Sharing::Tree | Sharing::Auto, _) => plans.tree.clone(),
            };
            let cost = self.setup.size.cost;
            Pass::new(plan, objective.clone(), trainer.clone(), cost).with_prediction(prediction)
        };
        let passes: Vec<_> = sharings.iter().map(pass).collect();
        let first_step = passes[0].plan.packs(0)?.packs;
        let recurrent = self.setup.config.is_hybrid();
        if let Some(memory) = index_memory(&first_step, recurrent, &trainer.device) {
            println!(
                "Mask, plans and indices of the largest pack of the first step: {} on the device, {} \
                 on the host",
                format_bytes(memory.device_bytes),
                format_bytes(memory.host_bytes),
            );
        }
        Ok(passes)
    }

    /// Trees or separate trajectories for every task: as before in a run that is resumed.
    fn chosen_sharing(&self, plans: &Plans, trainer: &Trainer<CausalLm>) -> Result<ChosenSharing> {
        let chosen = match self.resumed {
            Some(_) => ChosenSharing::load(&self.output, plans)?,
            None => {
                let memory = Memory {
                    config: &self.setup.config,
                    size: &self.setup.size,
                    run: self.args.run_size(),
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

    /// Computes the reference log-probabilities of all data for every pass, each on packs of its
    /// own kind, and says how long it took.
    ///
    /// # Errors
    /// If the trajectories cannot be packed.
    pub fn compute_reference<O: Objective>(
        &self,
        passes: &mut [Pass<CausalLm, O>],
        reference: &Trainer<CausalLm>,
    ) -> Result<()> {
        for pass in passes {
            let seconds = pass.compute_reference(reference)?;
            let on = match pass.sharing() {
                Sharing::Tree | Sharing::Auto => "trees",
                Sharing::Flat => "separate trajectories",
            };
            println!("Reference log-probabilities, on {on}: {seconds:.2} s");
        }
        Ok(())
    }

    /// Makes the steps that are left, each by all passes, with what belongs between them:
    /// validation, metrics and checkpoints.
    ///
    /// # Errors
    /// If a step cannot be made or something cannot be written.
    pub fn train<O: Objective>(
        &mut self,
        passes: &mut [Pass<CausalLm, O>],
        validation: Option<&Validation<O>>,
    ) -> Result<()> {
        let total_steps = self.schedule.total_steps;
        let mut scheduler = self.schedule.init(self.completed_steps)?;
        let progress = progress_bar(total_steps, self.completed_steps);
        let mut checkpoint_due = false;
        for step in self.completed_steps..total_steps {
            let learning_rate = scheduler.step();
            let place = passes[0].plan.place(step);
            let mut record = StepRecord {
                step: step + 1,
                epoch: place.epoch + 1,
                learning_rate: learning_rate.base(),
                tree: None,
                flat: None,
                comparison: None,
                validation_loss: None,
            };
            for pass in &mut *passes {
                let made = pass.step(step, learning_rate.clone())?;
                match pass.sharing() {
                    Sharing::Tree | Sharing::Auto => record.tree = Some(made),
                    Sharing::Flat => record.flat = Some(made),
                }
            }
            record.comparison = compare(&record, &self.setup.size.cost);
            if step == self.completed_steps {
                let names = passes[0].without_gradient();
                progress.suspend(|| summary::print_without_gradient(names));
            }

            let last = step + 1 == total_steps;
            let due = |every: usize| last || (every > 0 && (step + 1).is_multiple_of(every));
            let trainer = &passes[0].trainer;
            if let Some(validation) = validation
                && due(validation.every)
            {
                let Validation {
                    step, objective, ..
                } = validation;
                let (loss, _) = trainer.evaluate(step, objective)?;
                record.validation_loss = Some(loss);
            }
            self.metrics.write(&record)?;
            let every = self.args.output.checkpoint_every;
            checkpoint_due |= every > 0 && due(every);
            // What a batch of several steps began with is not in a checkpoint.
            if checkpoint_due && (place.ends_batch || last) {
                self.save(step + 1, trainer)?;
                checkpoint_due = false;
            }
            progress.suspend(|| println!("{}", report::step_line(&record, total_steps, O::SHOWN)));
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

    /// Draws the curves, prints speeds and the comparison, and exports the model.
    ///
    /// # Errors
    /// If something cannot be written.
    pub fn finish<O: Objective>(&self, passes: &[Pass<CausalLm, O>]) -> Result<()> {
        summary::draw(&self.output, &self.records, O::SHOWN)?;
        summary::print_result(&self.records, &self.setup.size.cost, &self.gemm);
        print_prediction(&self.records);
        if let Some(peak) = peak_memory() {
            println!("Peak memory of the process: {}", format_bytes(peak));
        }
        self.setup.export(self.args, &passes[0].trainer.model)
    }
}

/// The rate of a matrix product as the blocks have them, against which steps are judged.
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

/// The folder of a resumed run, the one given, or a new one under `runs`.
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
                    "--output {}: holds another run; continue it with --resume, or choose another \
                     folder",
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
