//! Estimates against what processes take.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use tree_training_examples::training::memory::format_bytes;
use tree_training_examples::training::report::table;

use crate::step::{Outcome, Shape};

/// What is measured.
#[derive(Args, Debug)]
pub struct Options {
    /// Where to compute.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Built-in model.
    #[arg(long, default_value = "small")]
    model: String,
    /// Its token ids.
    #[arg(long, default_value_t = 4096)]
    vocab: usize,
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
            let outcome = in_a_process(options, shape, parts, rows, recompute)?;
            let taken = outcome.peak_bytes - outcome.before_bytes;
            let deviation = outcome.estimate as f64 / taken as f64 - 1.0;
            lines.push(vec![
                name.to_owned(),
                outcome.packs.to_string(),
                rows.to_string(),
                if recompute { "computed again" } else { "kept" }.to_owned(),
                format_bytes(taken),
                format_bytes(outcome.estimate),
                format!("{:+.0} %", 100.0 * deviation),
                format!("{:.2} s", outcome.seconds),
            ]);
            // What has been measured is seen at once.
            println!("{}", lines.last().expect("just pushed").join("  "));
        }
    }
    let header = [
        "step",
        "packs",
        "tokens of a pack",
        "blocks",
        "measured",
        "estimate",
        "deviation",
        "time",
    ];
    println!("{}", table(&header, lines));
    Ok(())
}

/// The most memory a process has held is never less than before: every step gets one of its own.
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
    command.args(["--shape", shape.get_name(), "--parts", &parts.to_string()]);
    command.args(["--rows", &rows.to_string()]);
    if recompute {
        command.arg("--recompute");
    }
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).with_context(|| format!("output of {command:?}"))
}
