//! Fine-tunes a Qwen3-family model on trees of trajectories.
//!
//! The recipe is [`run`], from top to bottom; its parts are in `tree_training_examples::training`.

mod args;
mod demonstration;
mod model_source;
mod settings;
mod summary;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn_tree_train::LmHeadOptions;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use tree_pack::{PackOptions, Trajectory, build_forests};
use tree_training_examples::lora::{self, LoraSettings};
use tree_training_examples::qwen3::weights::SaveOptions;
use tree_training_examples::training::adamw::{AdamWOptions, adamw};
use tree_training_examples::training::atomic;
use tree_training_examples::training::checkpoint::{self, RunState};
use tree_training_examples::training::cost::ModelSize;
use tree_training_examples::training::data::{self, DataOptions, TextOptions};
use tree_training_examples::training::device::device_by_name;
use tree_training_examples::training::memory::{self, peak_memory};
use tree_training_examples::training::metrics::{MetricsLog, StepRecord};
use tree_training_examples::training::objective::Supervised;
use tree_training_examples::training::optimizer_step::{Precision, Trainer, evaluate};
use tree_training_examples::training::pass::{Pass, compare};
use tree_training_examples::training::plan::{Sharing, StepOrder, StepPlan, largest_tree};
use tree_training_examples::training::report;
use tree_training_examples::training::schedule::Schedule;
use tree_training_examples::training::timing::{Repetitions, product_rate};

use args::{Args, LoraExport};
use model_source::ModelSource;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<()> {
    let args = demonstration::fill_in(args)?;
    settings::check(&args)?;

    // The device, and the shape of the model.
    let device = device_by_name(&args.device)?.autodiff();
    let source = ModelSource::find(&args.model);
    let mut config = source.config(None)?;

    // Trajectories, selected and split by task.
    let mut data = data::load(&data_options(&args, &source, config.vocab_size))?;
    let mut original_ids = None;
    if args.compact_vocab {
        let vocabulary = data.compact_vocabulary();
        config = source.config(Some(vocabulary.len()))?;
        original_ids = Some(vocabulary.original_ids);
    }

    // Optimizer steps: whole tasks, packed within a budget. The flat plan has the same steps.
    let pack_options = pack_options(&args, &data.training, &data.validation)?;
    let order = StepOrder::once(args.tasks_per_step(), args.seed);
    let plan = |trajectories: &Arc<Vec<Trajectory>>, sharing| {
        StepPlan::new(trajectories.clone(), sharing, pack_options, order)
    };
    let tree_plan = plan(&data.training, Sharing::Tree)?;
    let flat_plan = plan(&data.training, Sharing::Flat)?;
    let validation = match data.validation.is_empty() {
        true => None,
        false => Some(plan(&data.validation, Sharing::Tree)?.all_packs()?),
    };
    let total_steps = total_steps(&args, &tree_plan);
    let schedule = Schedule {
        peak: args.learning_rate,
        minimum: args.min_learning_rate,
        warmup_steps: args.warmup_steps,
        total_steps,
        decay: args.decay,
    };
    schedule.init(0)?;

    // What it will cost, before any memory is taken for it.
    let size = ModelSize::new(&config, args.lora_rank.map(Into::into));
    summary::print_data(&data, &tree_plan);
    summary::print_bounds(&size, &tree_plan, &flat_plan)?;
    summary::print_memory(&args, &config, &size, [&tree_plan, &flat_plan])?;

    // Where the run's files go, and where it starts.
    let settings = settings::settings(&args, &data, &schedule, pack_options.token_budget);
    let resumed = args.resume.as_deref().map(checkpoint::find).transpose()?;
    let mut completed_steps = 0;
    if let Some(checkpoint) = &resumed {
        let state = checkpoint::load_state(checkpoint)?;
        state.check_settings(&settings)?;
        completed_steps = state.completed_steps;
    }
    let output = output_folder(&args, resumed.as_deref())?;
    let (mut metrics, mut records) =
        MetricsLog::resume(&output.join("metrics.jsonl"), completed_steps)?;
    if let Some(ids) = original_ids {
        // Entry k is the tokenizer's id of the model's id k.
        atomic::write(
            &output.join("original_token_ids.json"),
            &serde_json::to_vec(&ids)?,
        )?;
    }
    println!("Output: {}", output.display());

    // The model and its optimizer, one pair for each kind of step.
    let mut model = source.load(&config, args.seed, &device)?;
    let lora = args
        .lora_rank
        .map(|rank| LoraSettings::new(rank.get(), args.lora_alpha));
    if let Some(lora) = &lora {
        device.seed(args.seed);
        model = lora.apply(model)?;
    }
    if let Some(checkpoint) = &resumed {
        model = checkpoint::load_model(checkpoint, model)?;
    }
    let adamw_options = AdamWOptions {
        beta1: args.beta1,
        beta2: args.beta2,
        epsilon: args.epsilon,
        weight_decay: args.weight_decay,
    };
    let mut optimizer = adamw(&model, &adamw_options, &device);
    if let Some(checkpoint) = &resumed {
        optimizer = checkpoint::load_optimizer(checkpoint, optimizer)?;
    }
    let head = LmHeadOptions {
        chunk_rows: args.head_chunk_rows.map(NonZeroUsize::get),
        ..Default::default()
    };
    let trainer = Trainer {
        model,
        optimizer,
        max_gradient_norm: (args.max_grad_norm > 0.0).then_some(args.max_grad_norm),
        precision: Precision {
            blocks: args.compute_dtype.dtype(),
            head: args.head_dtype.dtype(),
        },
        head,
        device: device.clone(),
    };
    let mut passes = Vec::new();
    if !args.no_tree {
        let (plan, trainer) = (tree_plan.clone(), trainer.clone());
        passes.push(Pass::new(plan, Supervised, trainer, size.cost));
    }
    if args.no_tree || args.compare {
        passes.push(Pass::new(flat_plan.clone(), Supervised, trainer, size.cost));
    }

    // The training loop.
    let inner = config.intermediate_size.max(config.hidden_size);
    let gemm_shape = [4096, config.hidden_size, inner];
    let repetitions = Repetitions {
        warm_up: 2,
        samples: 5,
        runs: 1,
    };
    let gemm_rate = product_rate(
        &device.clone().inner(),
        gemm_shape,
        args.compute_dtype.dtype(),
        repetitions,
    );
    let mut scheduler = schedule.init(completed_steps)?;
    let progress = progress_bar(total_steps, completed_steps);
    for step in completed_steps..total_steps {
        let learning_rate: ModuleLearningRate = scheduler.step();
        let mut record = StepRecord {
            step: step + 1,
            epoch: tree_plan.epoch_of(step) + 1,
            learning_rate: learning_rate.base(),
            tree: None,
            flat: None,
            comparison: None,
            validation_loss: None,
        };
        for pass in &mut passes {
            let made = pass.step(step, learning_rate.clone())?;
            match pass.sharing() {
                Sharing::Tree => record.tree = Some(made),
                Sharing::Flat => record.flat = Some(made),
            }
        }
        record.comparison = compare(&record, &size.cost);

        let last = step + 1 == total_steps;
        let due = |every: usize| last || (every > 0 && (step + 1).is_multiple_of(every));
        let trainer = &passes[0].trainer;
        if let Some(validation) = &validation
            && due(args.validate_every)
        {
            let (loss, _) = evaluate(&trainer.model, validation, &Supervised, head, &device);
            record.validation_loss = Some(loss);
        }
        metrics.write(&record)?;
        if args.checkpoint_every > 0 && due(args.checkpoint_every) {
            let state = RunState::new(step + 1, settings.clone());
            let keep = args.keep_checkpoints.get();
            let folder = output.join("checkpoints");
            checkpoint::save(&folder, &state, &trainer.model, &trainer.optimizer, keep)?;
        }
        progress.suspend(|| println!("{}", report::step_line(&record, total_steps)));
        progress.inc(1);
        records.push(record);
    }
    progress.finish_and_clear();

    // What came of it.
    summary::draw(&output, &records)?;
    summary::print_result(&records, &size.cost, gemm_shape, gemm_rate);
    if let Some(peak) = peak_memory() {
        println!("Peak memory of the process: {}", memory::format_bytes(peak));
    }
    if let Some(folder) = &args.export {
        let model = &passes[0].trainer.model;
        match (&lora, args.lora_export) {
            (None, _) => model.save(&config, folder, SaveOptions::default())?,
            (Some(_), LoraExport::Merged) => {
                lora::merged(model).save(&config, folder, SaveOptions::default())?;
            }
            (Some(lora), LoraExport::Peft) => {
                lora.save_adapter(model, &source.name(), folder)?;
            }
        }
        println!("Model: {}", folder.display());
    }
    Ok(())
}

fn data_options(args: &Args, source: &ModelSource, vocab_size: usize) -> DataOptions {
    let template = || {
        source
            .file("chat_template.jinja")
            .or(source.file("tokenizer_config.json"))
    };
    DataOptions {
        files: args.data.clone(),
        text: TextOptions {
            template: args.template.clone().or_else(template),
            tokenizer: args
                .tokenizer
                .clone()
                .or_else(|| source.file("tokenizer.json")),
            tools: args.tools.clone(),
        },
        // Renumbered ids always fit.
        vocab_size: (!args.compact_vocab).then_some(vocab_size),
        tasks: args.tasks.clone(),
        selection: args.select,
        max_length: args.max_length.map(NonZeroUsize::get),
        too_long: args.too_long,
        validation_fraction: args.validation_fraction,
        seed: args.seed,
    }
}

/// The budget is the largest tree's size, or [`DEFAULT_BUDGET`], unless it is given.
fn pack_options(
    args: &Args,
    training: &[Trajectory],
    validation: &[Trajectory],
) -> Result<PackOptions> {
    let token_budget = match args.token_budget {
        Some(budget) => budget.get(),
        None => {
            let (training, validation) = (build_forests(training)?, build_forests(validation)?);
            DEFAULT_BUDGET
                .max(largest_tree(&training))
                .max(largest_tree(&validation))
        }
    };
    Ok(PackOptions {
        objective: args.objective.into(),
        aggregation: args.aggregation,
        ..PackOptions::new(token_budget)
    })
}

/// Tokens of a pack that keep matrix products efficient.
const DEFAULT_BUDGET: usize = 8192;

fn total_steps(args: &Args, plan: &StepPlan) -> usize {
    let steps = plan.steps_per_epoch().saturating_mul(args.epochs());
    args.max_steps.map_or(steps, |most| steps.min(most.get()))
}

/// The folder of a resumed run, the one given, or a new one under `runs`.
fn output_folder(args: &Args, resumed: Option<&Path>) -> Result<PathBuf> {
    let folder = match (resumed, &args.output) {
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
            .map(|number| PathBuf::from(format!("runs/fine-tune-{number:03}")))
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
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    bar
}
