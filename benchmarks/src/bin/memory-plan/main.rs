//! Estimates the tokens of a pack that fit in a given memory, and measures the error of estimates.

mod measure;
mod step;
mod table;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Estimates the memory of training steps.
#[derive(Parser, Debug)]
#[command(name = "memory-plan", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Print the tokens of a pack that fit in memories of several sizes.
    Table(table::Options),
    /// Run small training steps, each in a separate process, and compare their peak memory with the
    /// estimate.
    Measure(measure::Options),
    /// Run one of these steps and print its memory as JSON.
    Step(step::Options),
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Table(options) => table::print(&options),
        Command::Measure(options) => measure::print(&options),
        Command::Step(options) => step::run(&options),
    }
}
