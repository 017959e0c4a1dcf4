//! The run of a program without `--data`: bundled recordings and a small model with random weights,
//! compared with separate trajectories.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::options::RunArgs;

/// A demonstration: a few tasks, which take one or two minutes on two cores.
pub struct Demonstration {
    /// Name of the program.
    pub program: &'static str,
    /// Bundled file.
    pub file: &'static str,
    /// Number of tasks.
    pub tasks: &'static [&'static str],
    /// Number of epochs.
    pub epochs: NonZeroUsize,
    /// Tasks per optimizer step.
    pub tasks_per_step: NonZeroUsize,
}

impl Demonstration {
    /// Samples with rewards for the game of 24: sixteen per task, some of which solve it.
    pub const fn of_rewards(program: &'static str, epochs: NonZeroUsize) -> Self {
        Self {
            program,
            file: "data/tokens/tot_game24_cot16.jsonl.gz",
            tasks: &[
                "game24_cot/900",
                "game24_cot/910",
                "game24_cot/917",
                "game24_cot/924",
                "game24_cot/927",
                "game24_cot/934",
            ],
            epochs,
            tasks_per_step: NonZeroUsize::new(3).unwrap(),
        }
    }

    /// Fills in data, tasks, epochs and the comparison if no data are given, and prints the choice.
    ///
    /// # Errors
    /// If the bundled file is not found.
    pub fn fill_in(&self, args: &mut RunArgs) -> Result<()> {
        if !args.data.data.is_empty() {
            return Ok(());
        }
        let file = find(self.file)?;
        if args.data.tasks.is_empty() {
            args.data.tasks = self.tasks.iter().map(|&task| task.into()).collect();
        }
        args.steps.epochs.get_or_insert(self.epochs);
        args.steps.tasks_per_step.get_or_insert(self.tasks_per_step);
        let compare = &mut args.comparison;
        compare.compare = compare.sharing != crate::plan::Sharing::Flat
            && args.output.resume.is_none()
            && args.output.checkpoint_every == 0;
        args.model.compact_vocab |= !Path::new(&args.model.model).exists();
        println!(
            "No --data given: running the demonstration. The equivalent command is\n  {} --data {} \
             --tasks {} --tasks-per-step {} --epochs {}{}{}\n",
            self.program,
            file.display(),
            args.data.tasks.join(","),
            args.steps.tasks_per_step(),
            args.steps.epochs(),
            if args.comparison.compare {
                " --compare"
            } else {
                ""
            },
            if args.model.compact_vocab {
                " --compact-vocab"
            } else {
                ""
            },
        );
        args.data.data = vec![file];
        Ok(())
    }
}

/// Finds a bundled file in the current folder, its parents, or the source folder of this build.
fn find(file: &str) -> Result<PathBuf> {
    let current = std::env::current_dir().unwrap_or_default();
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."));
    for folder in current.ancestors().chain([built_in]) {
        let path = folder.join(file);
        if path.is_file() {
            return Ok(path
                .strip_prefix(&current)
                .map(Path::to_owned)
                .unwrap_or(path));
        }
    }
    bail!(
        "the bundled recordings ({file}) were not found in {}, its parent folders or {}; give your \
         own data with --data",
        current.display(),
        built_in.display()
    )
}
