//! Options of the data.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::data::selection::TooLong;

/// Options of the data.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Data")]
pub struct DataArgs {
    /// Trajectories: JSON lines with token ids or messages, optionally gzipped; may be repeated.
    #[arg(long, short, value_name = "FILE")]
    pub data: Vec<PathBuf>,
    /// Chat template (Jinja) for message trajectories.
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// tokenizer.json for message trajectories; default: that of the model folder.
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Tool schemas (JSON) for message trajectories: one list, or an object of lists by task.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Use only these tasks: ids separated by commas.
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    pub tasks: Vec<String>,
    /// Longest trajectory in tokens.
    #[arg(long, value_name = "TOKENS")]
    pub max_length: Option<NonZeroUsize>,
    /// Treatment of longer trajectories.
    #[arg(long, value_enum, default_value_t = TooLong::Error)]
    pub too_long: TooLong,
}

/// Options of the validation.
#[derive(clap::Args, Debug, Clone, Default)]
#[command(next_help_heading = "Validation")]
pub struct ValidationArgs {
    /// Fraction of the tasks held out for validation, selected by the seed.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub validation_fraction: f64,
    /// Steps between validations; 0 validates at the end only.
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    pub validate_every: usize,
}

impl ValidationArgs {
    /// Checks combinations of options.
    ///
    /// # Errors
    /// A message that names the option.
    pub fn check(&self) -> Result<()> {
        if self.validate_every > 0 && self.validation_fraction == 0.0 {
            bail!("--validate-every needs --validation-fraction");
        }
        Ok(())
    }
}
