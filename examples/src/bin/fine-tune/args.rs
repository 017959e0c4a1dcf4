//! The command line.

use burn_tree_trainer::data::selection::Selection;
use burn_tree_trainer::options::{RunArgs, ValidationArgs};
use clap::{Parser, ValueEnum};
use serde::Serialize;
use tree_pack::{Aggregation, Objective};

/// Fine-tunes a language model on trajectories that share prefixes, computing every shared
/// token once.
///
/// Without --data a demonstration runs on the bundled recordings: a small model with random
/// weights is trained on trees and, beside it, on separate trajectories.
#[derive(Parser, Debug, Clone)]
#[command(name = "fine-tune", version)]
pub struct Args {
    /// What all training programs have.
    #[command(flatten)]
    pub run: RunArgs,
    /// The tasks held out.
    #[command(flatten)]
    pub validation: ValidationArgs,
    /// Which trajectories of a task are trained.
    #[arg(long, value_enum, default_value_t = Selection::All, help_heading = "Data")]
    pub select: Selection,
    /// How often a prediction that several trajectories share counts.
    #[arg(long, value_enum, default_value_t = ObjectiveArg::PerPath, help_heading = "Objective")]
    pub objective: ObjectiveArg,
    /// How the losses of a step are averaged: sum, sep-avg, trajectory-mean, token-mean,
    /// weighted-token-mean, unique-mean or constant:DIVISOR.
    #[arg(long, default_value = "token-mean", help_heading = "Objective")]
    pub aggregation: Aggregation,
}

/// [`Objective`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectiveArg {
    /// Once for every trajectory through it.
    PerPath,
    /// Once, however many trajectories share it.
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
