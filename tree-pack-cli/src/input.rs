//! Input files: trajectories, with progress bars, and tokenizers.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tree_pack::{Trajectory, TrajectoryReader};

/// Options that select the trajectories.
#[derive(clap::Args)]
pub struct InputArgs {
    /// Files of trajectories in token form (JSON lines, may be gzipped); `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Read only this task; may be given several times.
    #[arg(long = "task", value_name = "ID")]
    tasks: Vec<String>,
    /// Refuse token ids that are not below this vocabulary size.
    #[arg(long, value_name = "N")]
    vocab_size: Option<u32>,
}

impl InputArgs {
    /// Reads the trajectories; none is an error.
    pub fn read(&self) -> Result<Vec<Trajectory>> {
        let mut trajectories = Vec::new();
        let mut other_tasks = Vec::new();
        for path in &self.files {
            let (source, progress) = open(path)?;
            let mut reader = TrajectoryReader::new(path, source)?;
            if let Some(size) = self.vocab_size {
                reader = reader.with_vocab_size(size);
            }
            for trajectory in reader {
                let trajectory = trajectory?;
                if self.tasks.is_empty() || self.tasks.contains(&trajectory.task_id) {
                    trajectories.push(trajectory);
                } else if !other_tasks.contains(&trajectory.task_id) && other_tasks.len() < 10 {
                    other_tasks.push(trajectory.task_id);
                }
            }
            progress.finish_and_clear();
        }
        for task in &self.tasks {
            if !trajectories
                .iter()
                .any(|trajectory| trajectory.task_id == *task)
            {
                bail!(
                    "no trajectory of task `{task}`; there are tasks {}, ...",
                    quoted(&other_tasks)
                );
            }
        }
        if trajectories.is_empty() {
            bail!("no trajectories in {}", self.names());
        }
        Ok(trajectories)
    }

    /// Names of the files, for messages and captions.
    pub fn names(&self) -> String {
        let names: Vec<_> = self
            .files
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        names.join(", ")
    }
}

/// Opens a file or standard input, with a progress bar.
pub fn open(path: &Path) -> Result<(Box<dyn Read + Send>, ProgressBar)> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin()), ProgressBar::hidden()));
    }
    let file = File::open(path).with_context(|| format!("{}: cannot be opened", path.display()))?;
    let bar = ProgressBar::new(file.metadata().map_or(0, |metadata| metadata.len()));
    bar.set_style(ProgressStyle::with_template(
        "{msg} {bar:40} {bytes} of {total_bytes}, {eta} left",
    )?);
    bar.set_message(path.display().to_string());
    Ok((Box::new(bar.wrap_read(file)), bar))
}

/// Texts in backticks, separated by commas.
pub fn quoted(texts: &[String]) -> String {
    let texts: Vec<_> = texts.iter().map(|text| format!("`{text}`")).collect();
    texts.join(", ")
}

/// The file of a tokenizer; `path` is the file or the folder of a model.
pub fn tokenizer_file(path: &Path) -> Result<PathBuf> {
    if path.is_dir() {
        return first_file(path, &["tokenizer.json", "tokenizer.json.gz"]);
    }
    Ok(path.to_owned())
}

/// The first of some files that exists in a folder.
pub fn first_file(folder: &Path, names: &[&str]) -> Result<PathBuf> {
    let found = names
        .iter()
        .map(|name| folder.join(name))
        .find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "{}: contains neither {}",
            folder.display(),
            names.join(" nor ")
        )
    })
}
