//! Trains a language model on trees of rollouts with rewards.
//!
//! The recipe is [`run`]; its parts are in `burn_tree_trainer`.

mod args;

use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::{Result, bail};
use burn_tree_trainer::data::demonstration::Demonstration;
use burn_tree_trainer::data::rollouts::{Columns, drop_uniform_tasks, set_advantages};
use burn_tree_trainer::data::selection::Selection;
use burn_tree_trainer::loss::Policy;
use burn_tree_trainer::optim::optimizer_step::Trainer;
use burn_tree_trainer::options::ValidationArgs;
use burn_tree_trainer::plan::Plans;
use burn_tree_trainer::report::summary;
use burn_tree_trainer::run::Run;
use burn_tree_trainer::run::log_probs::LogProbs;
use burn_tree_trainer::run::settings;
use burn_tree_trainer::run::setup::Setup;
use clap::Parser;
use tree_pack::PackOptions;

use args::Args;

const DEMONSTRATION: Demonstration =
    Demonstration::of_rewards("grpo", NonZeroUsize::new(2).unwrap());

/// The default of `--learning-rate`.
const LEARNING_RATE: f64 = 1e-4;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: Args) -> Result<()> {
    DEMONSTRATION.fill_in(&mut args.run)?;
    args.run.check()?;
    let loss = args.loss()?;

    // The device, the configuration of the model, and the rollouts.
    let mut setup = Setup::new(&args.run, &ValidationArgs::default(), Selection::All)?;
    let rollouts = setup.training_mut();
    if args.drop_uniform {
        let dropped = drop_uniform_tasks(rollouts);
        println!("Dropped: {dropped} tasks whose rollouts all have the same reward");
    }

    // Advantages of the rollouts, relative to the others of their task.
    let rewards = set_advantages(rollouts, args.advantages)?;
    let model_is_old = args.old_log_probs.is_model(LogProbs::Old, rollouts)?;
    let has_reference = args.kl_coefficient != 0.0;
    let model_is_reference =
        has_reference && args.ref_log_probs.is_model(LogProbs::Reference, rollouts)?;
    if rollouts.is_empty() {
        bail!("no tasks are left for training");
    }
    if let (Some(cap), Some(without)) = (
        args.sampling_cap,
        rollouts
            .iter()
            .find(|rollout| rollout.sampling_log_probs.is_none()),
    ) {
        bail!(
            "--sampling-cap {cap} needs the log-probabilities of the inference engine, but task \
             {:?}, rollout {:?} has no sampling_logps",
            without.task_id,
            without.rollout_id
        );
    }

    let columns = Columns {
        advantages: true,
        old_log_probs: !model_is_old,
        ref_log_probs: has_reference && !model_is_reference,
        sampling_log_probs: args.sampling_cap.is_some(),
    };
    columns.keep(rollouts);

    // Optimizer steps: batches of whole tasks, several passes over each. The flat plan has the same
    // steps.
    let packs = PackOptions {
        aggregation: args.aggregation(),
        loss: loss.loss_form(),
        ..setup.pack_options(&args.run)?
    };
    let plans = Plans::new(&setup.data.training, packs, args.order())?;
    let schedule = args
        .run
        .steps
        .schedule(plans.tree.steps_per_epoch(), LEARNING_RATE)?;

    // Data, bounds and memory, printed before memory is allocated.
    summary::print_data(&setup.data, plans.tree.tasks());
    if let Some(rewards) = &rewards {
        summary::print_rewards(rewards);
    }
    println!(
        "Old log-probabilities: {}",
        match model_is_old {
            true =>
                "computed with the model at the beginning of each batch, as if it had sampled them",
            false => "read from the data",
        }
    );
    summary::print_bounds(&setup.size, &plans, args.run.comparison.sharing)?;
    summary::print_memory(&args.run, &setup.config, &setup.size, &plans)?;

    // The folder of the run, or the checkpoint to resume.
    let mut settings = settings::of_run(&args.run, &setup.data, &packs, &schedule);
    settings.extend(args.settings(&loss));
    let mut run = Run::start("grpo", &args.run, &setup, schedule, settings)?;

    // The model and its optimizer, one pair per variant; the reference is the initial model.
    let loss = Policy {
        loss,
        computes_old_log_probs: model_is_old,
    };
    let initial = setup.model(&args.run)?;
    let mut trainer = run.trainer(initial.clone())?;
    trainer.options.head.entropy = args.entropy();
    let mut variants = run.variants(&plans, &loss, &trainer)?;
    let reference = Trainer {
        model: initial,
        ..trainer
    };
    if model_is_reference {
        run.compute_reference(&mut variants, &reference)?;
    }
    drop(reference);

    // The training loop and the final report.
    run.train(&mut variants, None)?;
    run.finish(&variants)
}
