//! How many tokens a pack may have in a given memory: estimates, and how far they are from what a
//! process really takes.

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
    /// Print how many tokens a pack may have in memories of several sizes.
    Table(table::Options),
    /// Make small training steps, each in a process of its own, and compare the most memory it takes
    /// with the estimate.
    Measure(measure::Options),
    /// Make one of these steps and print what it takes as JSON.
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
