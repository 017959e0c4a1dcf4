//! Fine-tunes a language model on trees of trajectories.
//!
//! The recipe is [`run`]; its parts are in `burn_tree_trainer`.

mod args;

use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::Result;
use burn_tree_trainer::data::demonstration::Demonstration;
use burn_tree_trainer::loss::Supervised;
use burn_tree_trainer::plan::{Plans, StepOrder};
use burn_tree_trainer::report::summary;
use burn_tree_trainer::run::settings;
use burn_tree_trainer::run::setup::Setup;
use burn_tree_trainer::run::{Run, Validation};
use clap::Parser;
use serde_json::json;
use tree_pack::PackOptions;

use args::Args;

/// An agent with depth-first search over tool calls: many rollouts share long prefixes.
const DEMONSTRATION: Demonstration = Demonstration {
    program: "fine-tune",
    file: "data/tokens/toolbench_dfsdt.jsonl.gz",
    tasks: &["toolbench/G1_57", "toolbench/G2_119", "toolbench/G2_127"],
    epochs: NonZeroUsize::new(4).unwrap(),
    tasks_per_step: NonZeroUsize::MIN,
};

/// The default of `--learning-rate`.
const LEARNING_RATE: f64 = 1e-3;

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
    args.validation.check()?;

    // The device, the configuration of the model, and the trajectories, selected and split by task.
    let setup = Setup::new(&args.run, &args.validation, args.select)?;

    // Optimizer steps of whole tasks, packed into the token budget; the same in the flat plan.
    let packs = PackOptions {
        objective: args.objective.into(),
        aggregation: args.aggregation,
        ..setup.pack_options(&args.run)?
    };
    let order = StepOrder::once(args.run.steps.tasks_per_step(), args.run.steps.seed);
    let plans = Plans::new(&setup.data.training, packs, order)?;
    let validation = setup.validation_plan(packs, order)?;
    let validation = Validation::new(validation.as_ref(), Supervised, &args.validation)?;
    let schedule = args
        .run
        .steps
        .schedule(plans.tree.steps_per_epoch(), LEARNING_RATE)?;

    // Data, bounds and memory, printed before memory is allocated.
    summary::print_data(&setup.data, plans.tree.tasks());
    summary::print_bounds(&setup.size, &plans, args.run.comparison.sharing)?;
    summary::print_memory(&args.run, &setup.config, &setup.size, &plans)?;

    // The folder of the run, or the checkpoint to resume.
    let mut settings = settings::of_run(&args.run, &setup.data, &packs, &schedule);
    settings.insert("objective".into(), json!(args.objective));
    let mut run = Run::start("fine-tune", &args.run, &setup, schedule, settings)?;

    // The model and its optimizer, one pair per variant.
    let trainer = run.trainer(setup.model(&args.run)?)?;
    let mut variants = run.variants(&plans, &Supervised, &trainer)?;
    drop(trainer);

    // The training loop and the final report.
    run.train(&mut variants, validation.as_ref())?;
    run.finish(&variants)
}
