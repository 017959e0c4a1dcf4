//! Options of the output.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, bail};

/// Options of the output.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Folder for metrics, plots and checkpoints; default: a new one under `runs`.
    #[arg(long, short, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Steps between checkpoints; 0 writes none.
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    pub checkpoint_every: usize,
    /// Number of checkpoints to keep.
    #[arg(long, value_name = "COUNT", default_value = "2")]
    pub keep_checkpoints: NonZeroUsize,
    /// Resume the run in this output folder (or from this checkpoint); all other options must be
    /// the same.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["compare", "output"])]
    pub resume: Option<PathBuf>,
    /// Export the trained model into this folder (config.json and safetensors).
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
