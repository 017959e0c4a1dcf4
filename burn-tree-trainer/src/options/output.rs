//! What a run writes, and where.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, bail};

/// Options of the output.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Folder for metrics, pictures and checkpoints; a new one under `runs` if not given.
    #[arg(long, short, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Write a checkpoint every so many steps; 0 for none.
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    pub checkpoint_every: usize,
    /// Checkpoints kept.
    #[arg(long, value_name = "COUNT", default_value = "2")]
    pub keep_checkpoints: NonZeroUsize,
    /// Continue the run in this output folder (or from this checkpoint in it) exactly where it
    /// was; all other options must be as they were.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["compare", "output"])]
    pub resume: Option<PathBuf>,
    /// Write the trained model as a folder that other programs load (config.json and safetensors).
    #[arg(long, value_name = "FOLDER")]
    pub export: Option<PathBuf>,
}

impl OutputArgs {
    pub(super) fn check(&self) -> Result<()> {
        if let Some(folder) = &self.export
            && folder
                .read_dir()
                .is_ok_and(|mut entries| entries.next().is_some())
        {
            bail!("--export {}: the folder is not empty", folder.display());
        }
        Ok(())
    }
}
