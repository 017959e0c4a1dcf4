//! Trains a language model on preferences between rollouts that share prefixes.
//!
//! The recipe is [`run`]; its parts are in `burn_tree_trainer`.

mod args;

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use burn_tree_train::losses::Dpo;
use burn_tree_trainer::data::demonstration::Demonstration;
use burn_tree_trainer::data::pairs;
use burn_tree_trainer::data::rollouts::Columns;
use burn_tree_trainer::data::selection::Selection;
use burn_tree_trainer::loss::Preference;
use burn_tree_trainer::optim::optimizer_step::Trainer;
use burn_tree_trainer::plan::{Plans, StepOrder};
use burn_tree_trainer::report::summary;
use burn_tree_trainer::run::log_probs::{LogProbs, compute};
use burn_tree_trainer::run::settings;
use burn_tree_trainer::run::setup::Setup;
use burn_tree_trainer::run::{Run, Validation};
use clap::Parser;
use tree_pack::{PackOptions, Trajectory};

use args::Args;

const DEMONSTRATION: Demonstration =
    Demonstration::of_rewards("dpo", NonZeroUsize::new(4).unwrap());

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
    args.validation.check()?;

    // The device, the configuration of the model, and the rollouts that are in pairs.
    let mut setup = Setup::new(&args.run, &args.validation, Selection::All)?;
    let training = preference(&args, setup.training_mut())?;
    let held_out = match setup.data.validation.is_empty() {
        true => None,
        false => Some(preference(
            &args,
            Arc::make_mut(&mut setup.data.validation),
        )?),
    };
    let is_model = |data: &[Trajectory]| args.ref_log_probs.is_model(LogProbs::Reference, data);
    let model_is_reference = is_model(&setup.data.training)?;
    let model_is_reference_of_held_out = is_model(&setup.data.validation)?;
    for (data, model_is_reference) in [
        (&mut setup.data.training, model_is_reference),
        (&mut setup.data.validation, model_is_reference_of_held_out),
    ] {
        let columns = Columns {
            ref_log_probs: !model_is_reference,
            ..Columns::default()
        };
        columns.keep(Arc::make_mut(data).as_mut_slice());
    }

    // Optimizer steps of whole tasks, packed into the token budget; the same in the flat plan.
    let packs = PackOptions {
        loss: Dpo::LOSS_FORM,
        ..setup.pack_options(&args.run)?
    };
    let order = StepOrder::once(args.run.steps.tasks_per_step(), args.run.steps.seed);
    let plans = Plans::new(&setup.data.training, packs, order)?;
    let all = plans.tree.all_packs()?;
    training.check(&all)?;
    let mut held_out_plan = setup.validation_plan(packs, order)?;
    if let (Some(loss), Some(plan)) = (&held_out, &held_out_plan) {
        loss.check(&plan.all_packs()?)?;
    }
    let schedule = args
        .run
        .steps
        .schedule(plans.tree.steps_per_epoch(), LEARNING_RATE)?;

    // Data, bounds and memory, printed before memory is allocated.
    summary::print_data(&setup.data, plans.tree.tasks());
    println!("Pairs: {}", training.len());
    summary::print_bounds(&setup.size, &plans, args.run.comparison.sharing)?;
    summary::print_memory(&args.run, &setup.config, &setup.size, &plans)?;

    // The folder of the run, or the checkpoint to resume.
    let mut settings = settings::of_run(&args.run, &setup.data, &packs, &schedule);
    settings.extend(args.settings(&training));
    let mut run = Run::start("dpo", &args.run, &setup, schedule, settings)?;

    // The model and its optimizer, one pair per variant; the reference is the initial model.
    let initial = setup.model(&args.run)?;
    let trainer = run.trainer(initial.clone())?;
    let reference = Trainer {
        model: initial,
        ..trainer.clone()
    };
    let mut variants = run.variants(&plans, &training, &trainer)?;
    drop(trainer);
    if model_is_reference {
        run.compute_reference(&mut variants, &reference)?;
    }
    if let Some(plan) = &mut held_out_plan
        && model_is_reference_of_held_out
    {
        let steps = plan.in_steps();
        compute(LogProbs::Reference, plan, &steps, &reference)?;
    }
    let validation = match held_out {
        None => None,
        Some(loss) => Validation::new(held_out_plan.as_ref(), loss, &args.validation)?,
    };
    drop(reference);

    // The training loop and the final report.
    run.train(&mut variants, validation.as_ref())?;
    run.finish(&variants)
}

/// The pairs selected by the options. Rollouts in no pair are removed.
fn preference(args: &Args, rollouts: &mut Vec<Trajectory>) -> Result<Preference> {
    let mut pairs = match &args.pairs_file {
        Some(file) => pairs::read(file, rollouts)?,
        None => pairs::from_rewards(rollouts, args.pairs.into(), args.margin)?,
    };
    if pairs.is_empty() {
        bail!("no pairs: no task has rollouts of different reward, or of the pairs' file");
    }
    let dropped = pairs::keep_paired(rollouts, &mut pairs);
    if dropped > 0 {
        println!("Dropped: {dropped} rollouts in no pair");
    }
    Ok(Preference::new(&pairs, args.options()))
}
