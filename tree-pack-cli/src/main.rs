//! `tree-pack`: statistics, packs, pictures and tokens of trajectories that share prefixes.

mod active_plot;
mod drift_report;
mod input;
mod output;
mod pack;
mod parts;
mod report;
mod show;
mod stats;
mod tokenize;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Merges trajectories that share prefixes into prefix trees and packs them for tree training.
///
/// Trajectories are read from JSON-lines files, gzipped or not, one trajectory a line:
/// {"task_id", "rollout_id", "tokens", "loss_mask", ...}. Exit codes: 0 success, 1 bad data or
/// files, 2 wrong usage.
#[derive(Parser)]
#[command(name = "tree-pack", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Number of worker threads; all cores by default.
    #[arg(long, global = true, value_name = "N")]
    threads: Option<usize>,
}

#[derive(Subcommand)]
enum Command {
    Stats(stats::Args),
    Pack(pack::Args),
    Show(show::Args),
    Tokenize(tokenize::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output, such as `head`, closed the pipe.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    if let Some(threads) = cli.threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build_global()?;
    }
    match cli.command {
        Command::Stats(args) => stats::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io_errors = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    io_errors
        .into_iter()
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
