//! Times optimizer steps on trees and the same steps on separate trajectories.

mod args;
mod measure;
mod parts;
mod results;
mod steps;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::FloatDType;
use burn_tree_models::ModelSize;
use burn_tree_models::Precision;
use burn_tree_models::{CausalLm, ModelConfig};
use burn_tree_nn::LmHeadOptions;
use burn_tree_train::{StepOptions, StepWork};
use burn_tree_trainer::device::device_by_name;
use burn_tree_trainer::optim::adamw::{AdamWOptions, adamw};
use burn_tree_trainer::optim::optimizer_step::Trainer;
use burn_tree_trainer::plan::sharing::calibrate_on;
use burn_tree_trainer::report::timing::Repetitions;
use burn_tree_trainer::run::variant::TimePrediction;
use clap::Parser;
use tree_pack::{PackOptions, Partitioning};
use tree_training_benchmarks::attention::Heads;
use tree_training_benchmarks::products::ProductTimes;

use args::Args;
use measure::Rates;
use results::Results;

const ADAMW: AdamWOptions = AdamWOptions {
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.1,
};

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let steps = steps::steps(args)?;
    if let Some(folder) = &args.write_packs {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("--write-packs {}", folder.display()))?;
        return steps.iter().try_for_each(|step| step.save(folder));
    }

    let device = device_by_name(&args.device)?.autodiff();
    let config = ModelConfig::named(&args.model, args.vocab)?;
    let cost = ModelSize::new(&config, None).cost;
    let model = CausalLm::random(&config, 0, FloatDType::F32, &device);
    let mut trainer = Trainer {
        optimizer: adamw(&model, &ADAMW, &device),
        model,
        max_gradient_norm: Some(1.0),
        precision: Precision {
            blocks: args.dtype.dtype(),
            head: args.head_dtype.dtype(),
        },
        options: StepOptions {
            head: LmHeadOptions {
                chunk_rows: args.head_chunk_rows.map(Into::into),
                ..Default::default()
            },
            recompute: args.recompute,
            offload: args.offload,
            ..Default::default()
        },
        device,
    };

    let prediction = match args.predict {
        true => Some(predict(args, &config, &trainer)?),
        false => None,
    };
    let rates = rates(args, &config, &trainer, &steps);
    let mut results = Results::new(&rates);
    results.print_rates();
    let mut flat_steps: Vec<(_, measure::Measured)> = Vec::new();
    for step in &steps {
        let shape = step.flat_shape();
        let same = flat_steps.iter().find(|(other, _)| *other == shape);
        let timed_flat = same.map(|(_, flat)| flat);
        let comparison = measure::compare(
            step,
            timed_flat,
            &mut trainer,
            &measure::Yardsticks {
                cost,
                rates: &rates,
                prediction,
            },
            args,
        )?;
        if timed_flat.is_none() {
            flat_steps.push((shape, comparison.flat.clone()));
        }
        results.push(comparison);
        // Results are kept if a later step fails.
        if let Some(file) = &args.json {
            results.write(file)?;
        }
        if args.parts {
            parts::print(step, &config, &trainer, args);
        }
    }
    results.print_tables();
    Ok(())
}

/// Calibrates the prediction of step times.
fn predict(
    args: &Args,
    config: &ModelConfig,
    trainer: &Trainer<CausalLm>,
) -> Result<TimePrediction> {
    let parts = args.partitioning.iter().map(|&parts| parts.into());
    let packs = PackOptions {
        pad_to_multiple: steps::PAD_TO_MULTIPLE,
        partitioning: parts
            .max_by_key(|&parts| parts != Partitioning::Refuse)
            .unwrap_or_default(),
        ..PackOptions::new(args.token_budget.get())
    };
    let start = Instant::now();
    let calibration = calibrate_on(trainer, &packs, config)?;
    println!(
        "Calibration: {} steps of at most {} rows in {:.1} s, fitted with an error of {:.1} %",
        calibration.steps.len(),
        calibration
            .steps
            .iter()
            .map(|step| step.work.rows / step.work.packs)
            .fold(0.0, f64::max),
        start.elapsed().as_secs_f64(),
        100.0 * calibration.relative_error(),
    );
    for (name, seconds) in StepWork::NAMES
        .iter()
        .zip(calibration.step_time.seconds_of_one())
    {
        println!("  {name}: {seconds:.3e} s");
    }
    Ok(TimePrediction {
        time: calibration.step_time,
        recurrent: config.is_hybrid(),
    })
}

/// Rates of the products with the number of rows that most packs have.
fn rates(
    args: &Args,
    config: &ModelConfig,
    trainer: &Trainer<CausalLm>,
    steps: &[steps::BenchStep],
) -> Rates {
    let packs = steps.iter().flat_map(|step| &step.flat.packs);
    let rows = packs.map(|pack| pack.padded_len).max().unwrap_or(1);
    // The default of `token_log_probs`.
    let head_rows = trainer.options.head.chunk_rows.unwrap_or(256).min(rows);
    let repetitions = Repetitions {
        warm_up: 2,
        samples: 3,
        runs: 5,
    };
    println!("Measuring the rates of this machine");
    let (shadow_seconds, update_seconds) = measure::constants(trainer);
    Rates {
        products: ProductTimes::measure(
            config,
            [rows, head_rows],
            [args.dtype.dtype(), args.head_dtype.dtype()],
            &trainer.device.clone().inner(),
            repetitions,
        ),
        shadow_seconds,
        update_seconds,
        attention: (
            Heads {
                query: config.num_attention_heads,
                key_value: config.num_key_value_heads,
                dim: config.head_dim,
            },
            config.attention_layers(),
        ),
        recurrence: (0..config.num_hidden_layers)
            .find_map(|layer| config.linear_attention(layer))
            .map(|linear| {
                (
                    *linear,
                    config.num_hidden_layers - config.attention_layers(),
                )
            }),
    }
}
