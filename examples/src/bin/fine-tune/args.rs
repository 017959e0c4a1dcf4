//! The command line.

use burn_tree_trainer::data::selection::Selection;
use burn_tree_trainer::options::{RunArgs, ValidationArgs};
use clap::{Parser, ValueEnum};
use serde::Serialize;
use tree_pack::{Aggregation, Objective};

/// Fine-tunes a language model on trajectories that share prefixes. Shared prefixes are computed
/// once.
///
/// Without --data, a demonstration trains a small random model on bundled recordings, on trees and
/// side by side on separate trajectories.
#[derive(Parser, Debug, Clone)]
#[command(name = "fine-tune", version)]
pub struct Args {
    /// Options common to all training programs.
    #[command(flatten)]
    pub run: RunArgs,
    /// Options of the validation.
    #[command(flatten)]
    pub validation: ValidationArgs,
    /// Which trajectories of a task are trained.
    #[arg(long, value_enum, default_value_t = Selection::All, help_heading = "Data")]
    pub select: Selection,
    /// Weighting of predictions that several trajectories share.
    #[arg(long, value_enum, default_value_t = ObjectiveArg::PerPath, help_heading = "Objective")]
    pub objective: ObjectiveArg,
    /// Normalisation of the loss of a step: sum, sep-avg, trajectory-mean, token-mean,
    /// weighted-token-mean, unique-mean or constant:DIVISOR.
    #[arg(long, default_value = "token-mean", help_heading = "Objective")]
    pub aggregation: Aggregation,
}

/// [`Objective`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectiveArg {
    /// Once per trajectory that contains it.
    PerPath,
    /// Once in total.
    Unique,
}

impl From<ObjectiveArg> for Objective {
    fn from(objective: ObjectiveArg) -> Self {
        match objective {
            ObjectiveArg::PerPath => Self::PerPath,
            ObjectiveArg::Unique => Self::Unique,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
