//! Command-line options shared by the training programs, in groups.

mod data;
mod model;
mod output;
mod steps;

pub use data::{DataArgs, ValidationArgs};
pub use model::{ComputeDtype, LoraExport, ModelArgs};
pub use output::OutputArgs;
pub use steps::{ComparisonArgs, PartitioningArg, StepArgs};

use anyhow::Result;
use burn_tree_train::StepOptions;

use crate::memory::MemoryOptions;

/// Options of every training program.
#[derive(clap::Args, Debug, Clone)]
pub struct RunArgs {
    /// Options of the data.
    #[command(flatten)]
    pub data: DataArgs,
    /// Options of the model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Options of the optimizer steps.
    #[command(flatten)]
    pub steps: StepArgs,
    /// Options of the comparison.
    #[command(flatten)]
    pub comparison: ComparisonArgs,
    /// Options of the output.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl RunArgs {
    /// The options of forward and backward passes.
    pub fn step_options(&self) -> StepOptions {
        StepOptions {
            head: self.model.head(),
            recompute: self.steps.recompute,
            offload: self.steps.offload,
            ..Default::default()
        }
    }

    /// The options that memory estimates depend on.
    pub fn memory_options(&self) -> MemoryOptions {
        let options = self.step_options();
        MemoryOptions {
            head_chunk_rows: options.head.chunk_rows.map(|rows| rows as u64),
            compute_bytes: self.model.compute_dtype.bytes(),
            models: self.comparison.sharings().len() as u64,
            recompute: options.recompute,
            offload: options.offload,
        }
    }

    /// Checks values and combinations of options before any file is read.
    ///
    /// # Errors
    /// A message that names the option.
    pub fn check(&self) -> Result<()> {
        self.steps.check()?;
        self.comparison.check()?;
        self.output.check()?;
        if self.comparison.compare && self.output.checkpoint_every > 0 {
            anyhow::bail!("--compare trains two models side by side and writes no checkpoints");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        run: RunArgs,
        #[command(flatten)]
        _validation: ValidationArgs,
    }

    #[test]
    fn the_command_line_is_consistent() {
        Program::command().debug_assert();
    }

    #[test]
    fn comparing_excludes_the_baseline_alone_and_resuming() {
        let parse = |other: &[&'static str]| {
            Program::try_parse_from(["program", "--compare"].iter().chain(other))
        };
        assert!(parse(&["--resume", "runs/1"]).is_err());
        for (sharing, allowed) in [("tree", true), ("auto", true), ("flat", false)] {
            let program = parse(&["--sharing", sharing]).unwrap();
            assert_eq!(program.run.check().is_ok(), allowed, "{sharing}");
        }
    }
}
