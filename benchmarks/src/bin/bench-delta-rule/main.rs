//! Measures the gated delta rule on trees, the operations around it, and whole layers.

mod args;
mod layers;
mod parts;
mod report;
mod rule;

use std::process::ExitCode;

use anyhow::{Context, Result};
use burn_tree_ssm::TreeRecurrence;
use burn_tree_trainer::device::device_by_name;
use burn_tree_trainer::report::timing::Repetitions;
use burn_tree_trainer::run::atomic;
use clap::Parser;
use serde::Serialize;
use tree_pack::{PackOptions, build_forests, load_trajectories, pack_step};
use tree_training_benchmarks::packs::{NamedPack, PAD_TO_MULTIPLE};
use tree_training_benchmarks::windows::WindowStats;

use args::Args;
use layers::MeasuredLayer;
use parts::MeasuredPart;
use rule::Measured;

/// All results.
#[derive(Default, Serialize)]
struct Results {
    delta_rule: Vec<Measured>,
    parts: Vec<MeasuredPart>,
    layers: Vec<MeasuredLayer>,
    windows: Vec<(String, WindowStats)>,
}

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
    let mut results = Results::default();
    if !args.windows.is_empty() {
        for file in &args.windows {
            let stats = recorded_windows(file, args.rows)
                .with_context(|| format!("--windows {}", file.display()))?;
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let name = name.trim_end_matches(".jsonl.gz").to_owned();
            results.windows.push((name, stats));
        }
        println!("{}", report::windows(&results.windows));
        return write(args, &results);
    }
    let packs = packs(args)?;
    let device = device_by_name(&args.device)?;
    let repetitions = Repetitions {
        warm_up: 2,
        samples: args.samples,
        runs: args.runs,
    };
    for heads in args.heads() {
        for &dtype in &args.dtypes {
            for &implementation in &args.implementations {
                for pack in &packs {
                    let measured = rule::Setting {
                        heads,
                        dtype: dtype.dtype(),
                        implementation: implementation.into(),
                        device: &device,
                        repetitions,
                        checked: args.checked,
                    }
                    .measure(pack, &results.delta_rule)?;
                    println!("{}", report::line(&measured));
                    results.delta_rule.push(measured);
                    // Results are kept if a later measurement fails.
                    write(args, &results)?;
                }
            }
        }
    }
    if !args.no_parts
        && let Some(pack) = packs.last()
    {
        for heads in args.heads() {
            for &dtype in &args.dtypes {
                results.parts.extend(parts::measure(&parts::Setting {
                    tree: &pack.name,
                    recurrence: &recurrence(pack),
                    heads,
                    dtype: dtype.dtype(),
                    device: &device,
                    repetitions,
                }));
                write(args, &results)?;
            }
        }
        println!("{}", report::parts(&results.parts));
    }
    for layer in &args.layers {
        for &dtype in &args.dtypes {
            // One run of a layer keeps the device busy for long enough.
            let repetitions = Repetitions {
                runs: 1,
                ..repetitions
            };
            let measured = layer.measure(args.layer_length, dtype.dtype(), &device, repetitions)?;
            println!("{}", report::layer_line(&measured));
            results.layers.push(measured);
            write(args, &results)?;
        }
    }
    println!("{}", report::delta_rule(&results.delta_rule));
    Ok(())
}

/// The single paths and the trees.
fn packs(args: &Args) -> Result<Vec<NamedPack>> {
    let mut packs = Vec::new();
    for &rows in &args.paths {
        let pack = NamedPack::new("causal", rows, &args.data).context("--paths")?;
        packs.push(NamedPack {
            name: format!("path{rows}"),
            ..pack
        });
    }
    for name in &args.trees {
        packs.push(NamedPack::new(name, args.rows, &args.data).context("--trees")?);
    }
    Ok(packs)
}

/// The trees of a pack.
fn recurrence(pack: &NamedPack) -> TreeRecurrence {
    let pack = &pack.step.packs[0];
    TreeRecurrence::from_layouts(std::slice::from_ref(&pack.layout), pack.padded_len)
}

/// All trees of a file, in packs of `rows` tokens.
fn recorded_windows(file: &std::path::Path, rows: usize) -> Result<WindowStats> {
    let trajectories = load_trajectories([file])?;
    let forests = build_forests(&trajectories)?;
    let options = PackOptions {
        pad_to_multiple: PAD_TO_MULTIPLE,
        ..PackOptions::new(rows)
    };
    let step = pack_step(&trajectories, &forests, &options)?;
    Ok(WindowStats::of_packs(&step.packs))
}

/// Writes the results so far.
fn write(args: &Args, results: &Results) -> Result<()> {
    if let Some(file) = &args.json {
        atomic::write(file, &serde_json::to_vec_pretty(results)?)?;
    }
    Ok(())
}
