//! Compares estimates with measured memory.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use burn_tree_trainer::memory::format_bytes;
use burn_tree_trainer::options::ComputeDtype;
use burn_tree_trainer::report::table;
use clap::{Args, ValueEnum};

use crate::step::{Outcome, Shape};

/// Options of the measurement.
#[derive(Args, Debug)]
pub struct Options {
    /// Device.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Built-in configuration.
    #[arg(long, default_value = "small")]
    model: String,
    /// Vocabulary size.
    #[arg(long, default_value_t = 4096)]
    vocab: usize,
    /// Dtype of the forward and backward pass.
    #[arg(long, value_enum, default_value_t = ComputeDtype::F32)]
    dtype: ComputeDtype,
    /// Tokens of a pack.
    #[arg(long, default_value_t = 2048)]
    rows: usize,
    /// Packs of a chain, and branches of a star.
    #[arg(long, default_value_t = 8)]
    parts: usize,
}

/// Prints the table.
pub fn print(options: &Options) -> Result<()> {
    let (rows, parts) = (options.rows, options.parts);
    let steps = [
        ("one pack", Shape::Chain, 1, rows / 4),
        ("one pack", Shape::Chain, 1, rows / 2),
        ("one pack", Shape::Chain, 1, rows),
        ("chain", Shape::Chain, 2, rows),
        ("chain", Shape::Chain, parts, rows),
        ("star", Shape::Star, parts, rows),
    ];
    let mut lines = Vec::new();
    for recompute in [false, true] {
        for (name, shape, parts, rows) in steps {
            let blocks = if recompute { "recomputed" } else { "kept" };
            let outcome = in_a_process(options, shape, parts, rows, recompute);
            let mut line = vec![
                name.to_owned(),
                parts.to_string(),
                rows.to_string(),
                blocks.to_owned(),
            ];
            match outcome {
                Ok(outcome) => line.extend(cells(&outcome)),
                Err(error) => line.push(format!("{error:#}")),
            }
            lines.push(line);
            // Print results immediately.
            println!("{}", lines.last().expect("just pushed").join("  "));
        }
    }
    let header = [
        "step",
        "parts",
        "tokens of a part",
        "blocks",
        "measured",
        "estimate",
        "deviation",
        "activations",
        "reserved",
        "passes",
    ];
    println!("{}", table(&header, lines));
    Ok(())
}

fn cells(outcome: &Outcome) -> Vec<String> {
    let deviation = outcome.estimate as f64 / outcome.peak_bytes as f64 - 1.0;
    let or_dash = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), format_bytes);
    vec![
        format_bytes(outcome.peak_bytes),
        format_bytes(outcome.estimate),
        format!("{:+.0} %", 100.0 * deviation),
        or_dash(outcome.activation_bytes),
        or_dash(outcome.reserved_bytes),
        format!("{:.2} s", outcome.seconds),
    ]
}

/// The peak memory of a process never decreases, so each step runs in a separate process.
fn in_a_process(
    options: &Options,
    shape: Shape,
    parts: usize,
    rows: usize,
    recompute: bool,
) -> Result<Outcome> {
    let shape = shape.to_possible_value().expect("no value is hidden");
    let mut command = Command::new(std::env::current_exe()?);
    command.args([
        "step",
        "--device",
        &options.device,
        "--model",
        &options.model,
    ]);
    command.args(["--vocab", &options.vocab.to_string()]);
    let dtype = options
        .dtype
        .to_possible_value()
        .expect("no value is hidden");
    command.args(["--dtype", dtype.get_name()]);
    command.args(["--shape", shape.get_name(), "--parts", &parts.to_string()]);
    command.args(["--rows", &rows.to_string()]);
    if recompute {
        command.arg("--recompute");
    }
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).with_context(|| format!("output of {command:?}"))
}
