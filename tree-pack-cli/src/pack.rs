//! `tree-pack pack`: packs trajectories for optimizer steps.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use serde::Serialize;
use tree_pack::{
    Aggregation, LossForm, Objective, PackOptions, PackedStep, PrefixForest, StepPlanner,
    Trajectory, build_forests, flat_forests, pack_step,
};

use crate::input::InputArgs;
use crate::output::print;
use crate::parts::{PartCounts, PartitioningName};
use crate::report::{Format, new_table};

/// Pack trees into rows of a token budget, with the weights of an optimizer step, and save them.
///
/// A tree over the budget is an error unless --partitioning cuts it. Without --tasks-per-step, all
/// tasks form one step and the output is a safetensors file; with it, the output is a folder with
/// one file per step.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    input: InputArgs,
    /// Output: a file, or a new folder (see --tasks-per-step).
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    /// Maximum number of tokens in a pack; each tree token counts once.
    #[arg(long, value_name = "TOKENS")]
    budget: usize,
    /// Pad packs to a multiple of this.
    #[arg(long, value_name = "TOKENS", default_value_t = 1)]
    pad_to_multiple: usize,
    /// How trees over the budget are handled.
    #[arg(long, value_name = "NAME", default_value = "refuse")]
    partitioning: PartitioningName,
    /// Number of devices that share a step: the number of packs becomes a multiple of it, with even
    /// sizes.
    #[arg(long, value_name = "N", default_value = "1")]
    ranks: NonZeroUsize,
    /// How shared predictions count.
    #[arg(long, value_name = "NAME", default_value = "per-occurrence")]
    objective: ObjectiveName,
    /// How the sum over predictions is normalised: sum, sep-avg, trajectory-mean, token-mean,
    /// weighted-token-mean, unique-mean, constant:DIVISOR or
    /// constant-length:LONGEST.
    #[arg(long, value_name = "NAME", default_value = "token-mean")]
    aggregation: Aggregation,
    /// What the loss of a prediction depends on.
    #[arg(long, value_name = "NAME", default_value = "log-likelihood")]
    loss: LossName,
    /// Tasks in an optimizer step.
    #[arg(long, value_name = "N")]
    tasks_per_step: Option<NonZeroUsize>,
    /// Seed of the shuffle of tasks; no shuffle by default.
    #[arg(long, value_name = "SEED", requires = "tasks_per_step")]
    seed: Option<u64>,
    /// Epoch of the shuffle.
    #[arg(long, value_name = "N", requires = "seed", default_value_t = 0)]
    epoch: u64,
    /// Share no prefixes: every trajectory is a separate tree (the baseline).
    #[arg(long)]
    flat: bool,
    /// Format of the summary.
    #[arg(long, value_name = "FORM", default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum ObjectiveName {
    /// Each original prediction; merged where the result is the same.
    PerOccurrence,
    /// Merged with summed weights; an error where this is not exact.
    PerPath,
    /// Each tree token once.
    Unique,
}

#[derive(Clone, Copy, ValueEnum)]
enum LossName {
    /// Supervised fine-tuning.
    LogLikelihood,
    /// REINFORCE: advantages are multiplied into the weights.
    AdvantageWeighted,
    /// Clipped ratios, KL penalties: packs contain advantages and log-probabilities.
    PerToken,
    /// GSPO, DPO: never merged.
    PerTrajectory,
}

#[derive(Serialize)]
struct StepSummary {
    file: PathBuf,
    tasks: usize,
    trajectories: u64,
    tokens: u64,
    unique_tokens: u64,
    packs: usize,
    /// Lower bound of the number of packs: rows divided by the budget.
    packs_bound: u64,
    #[serde(flatten)]
    parts: PartCounts,
    padded_tokens: u64,
    trained_tokens: u64,
    occurrences: u64,
    merged: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let trajectories = args.input.read()?;
    let forests = match args.flat {
        true => flat_forests(&trajectories)?,
        false => build_forests(&trajectories)?,
    };
    let summaries = match args.tasks_per_step {
        None => {
            let step = args.pack(&trajectories, &forests.iter().collect::<Vec<_>>())?;
            step.save(&args.output)?;
            vec![args.summary(&step, forests.len(), args.output.clone())]
        }
        Some(tasks_per_step) => args.write_steps(&trajectories, &forests, tasks_per_step)?,
    };
    match args.format {
        Format::Json => print(&(serde_json::to_string_pretty(&summaries)? + "\n")),
        Format::Table => print(&table(&summaries)),
    }
}

impl Args {
    fn pack(&self, trajectories: &[Trajectory], forests: &[&PrefixForest]) -> Result<PackedStep> {
        let options = PackOptions {
            token_budget: self.budget,
            pad_to_multiple: self.pad_to_multiple,
            objective: match self.objective {
                ObjectiveName::PerOccurrence => Objective::PerOccurrence,
                ObjectiveName::PerPath => Objective::PerPath,
                ObjectiveName::Unique => Objective::Unique,
            },
            aggregation: self.aggregation,
            loss: match self.loss {
                LossName::LogLikelihood => LossForm::LogLikelihood,
                LossName::AdvantageWeighted => LossForm::AdvantageWeighted,
                LossName::PerToken => LossForm::PerToken,
                LossName::PerTrajectory => LossForm::PerTrajectory,
            },
            partitioning: self.partitioning.into(),
            ranks: self.ranks.get(),
        };
        Ok(pack_step(trajectories, forests, &options)?)
    }

    /// Writes one file per step, into a folder that is put in place when all are written.
    fn write_steps(
        &self,
        trajectories: &[Trajectory],
        forests: &[PrefixForest],
        tasks_per_step: NonZeroUsize,
    ) -> Result<Vec<StepSummary>> {
        let folder = self.output.as_path();
        ensure!(!folder.exists(), "{}: already exists", folder.display());
        let written = |error| format!("{}: cannot be written: {error}", folder.display());
        let parent = folder
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        fs::create_dir_all(parent)
            .map_err(written)
            .map_err(anyhow::Error::msg)?;
        let unfinished = tempfile::Builder::new()
            .prefix(".unfinished-")
            .tempdir_in(parent)?;

        let steps = StepPlanner {
            seed: self.seed,
            tasks_per_step,
        }
        .plan(forests.len(), self.epoch);
        let progress = ProgressBar::new(steps.len() as u64);
        progress.set_style(ProgressStyle::with_template(
            "steps {bar:40} {pos} of {len}, {eta} left",
        )?);
        let mut summaries = Vec::with_capacity(steps.len());
        for (number, tasks) in steps.iter().enumerate() {
            let chosen: Vec<_> = tasks.iter().map(|&task| &forests[task]).collect();
            let step = self
                .pack(trajectories, &chosen)
                .with_context(|| format!("step {number}"))?;
            let name = format!("step-{number:06}.safetensors");
            step.save(unfinished.path().join(&name))?;
            summaries.push(self.summary(&step, tasks.len(), folder.join(name)));
            progress.inc(1);
        }
        progress.finish_and_clear();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // Temporary folders are private by default.
            fs::set_permissions(unfinished.path(), fs::Permissions::from_mode(0o755))?;
        }
        fs::rename(unfinished.path(), folder)
            .map_err(written)
            .map_err(anyhow::Error::msg)?;
        // The folder was renamed, so nothing remains under the temporary name.
        let _ = unfinished.keep();
        Ok(summaries)
    }

    fn summary(&self, step: &PackedStep, tasks: usize, file: PathBuf) -> StepSummary {
        let sum = |of: fn(&tree_pack::Pack) -> usize| {
            step.packs.iter().map(|pack| of(pack) as u64).sum::<u64>()
        };
        StepSummary {
            file,
            tasks,
            trajectories: step.totals.trajectories,
            tokens: step.totals.tokens,
            unique_tokens: step.totals.unique_tokens,
            packs: step.packs.len(),
            packs_bound: step.totals.rows.div_ceil(self.budget as u64),
            parts: PartCounts::of(step),
            padded_tokens: sum(|pack| pack.padded_len),
            trained_tokens: step.totals.trained_tokens,
            occurrences: sum(|pack| pack.occurrences.len()),
            merged: step.merged,
        }
    }
}

fn table(summaries: &[StepSummary]) -> String {
    let mut table = new_table(&[
        "file",
        "tasks",
        "trajectories",
        "tokens",
        "unique",
        "packs",
        "at least",
        "continued",
        "past keys",
        "retained",
        "padded",
        "trained",
        "occurrences",
        "size",
    ]);
    for summary in summaries {
        let size = fs::metadata(&summary.file).map_or(0, |metadata| metadata.len());
        let count = |value: u64| HumanCount(value).to_string();
        table.add_row([
            summary.file.display().to_string(),
            count(summary.tasks as u64),
            count(summary.trajectories),
            count(summary.tokens),
            count(summary.unique_tokens),
            count(summary.packs as u64),
            count(summary.packs_bound),
            count(summary.parts.continued_packs as u64),
            count(summary.parts.past_keys as u64),
            count(summary.parts.retained_tokens as u64),
            count(summary.padded_tokens),
            count(summary.trained_tokens),
            count(summary.occurrences),
            HumanBytes(size).to_string(),
        ]);
    }
    format!("{table}\n")
}
