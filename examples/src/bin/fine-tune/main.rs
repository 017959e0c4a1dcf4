//! Fine-tunes a language model on trees of trajectories.
//!
//! The recipe is [`run`], from top to bottom; its parts are in `burn_tree_trainer`.

mod args;

use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::Result;
use burn_tree_trainer::data::demonstration::Demonstration;
use burn_tree_trainer::objective::Supervised;
use burn_tree_trainer::plan::{Plans, StepOrder};
use burn_tree_trainer::report::summary;
use burn_tree_trainer::run::settings;
use burn_tree_trainer::run::setup::Setup;
use burn_tree_trainer::run::{Run, Validation};
use clap::Parser;
use serde_json::json;
use tree_pack::PackOptions;

use args::Args;

/// An agent that searched tool calls depth first: many rollouts share long prefixes.
const DEMONSTRATION: Demonstration = Demonstration {
    program: "fine-tune",
    file: "data/tokens/toolbench_dfsdt.jsonl.gz",
    tasks: &["toolbench/G1_57", "toolbench/G2_119", "toolbench/G2_127"],
    epochs: NonZeroUsize::new(4).unwrap(),
    tasks_per_step: NonZeroUsize::MIN,
};

/// If none is given.
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

    // The device, the shape of the model, and the trajectories, selected and split by task.
    let setup = Setup::new(&args.run, &args.validation, args.select)?;

    // Optimizer steps: whole tasks, packed within a budget. The flat plan has the same steps.
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

    // What it will cost, before any memory is taken for it.
    summary::print_data(&setup.data, plans.tree.tasks());
    summary::print_bounds(&setup.size, &plans, args.run.comparison.sharing)?;
    summary::print_memory(&args.run, &setup.config, &setup.size, &plans)?;

    // Where the run's files go, and where it starts.
    let mut settings = settings::of_run(&args.run, &setup.data, &packs, &schedule);
    settings.insert("objective".into(), json!(args.objective));
    let mut run = Run::start("fine-tune", &args.run, &setup, schedule, settings)?;

    // The model and its optimizer, one pair for each kind of step.
    let trainer = run.trainer(setup.model(&args.run)?)?;
    let mut passes = run.passes(&plans, &Supervised, &trainer)?;
    drop(trainer);

    // The training loop, and what came of it.
    run.train(&mut passes, validation.as_ref())?;
    run.finish(&passes)
}
