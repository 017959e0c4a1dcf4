//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use burn::tensor::FloatDType;
use clap::{Parser, ValueEnum};
use serde::Serialize;
use tree_pack::{Aggregation, Objective};
use tree_training_examples::training::schedule::Decay;
use tree_training_examples::training::selection::{Selection, TooLong};

/// Fine-tunes a Qwen3-family model on trajectories that share prefixes, computing every shared
/// token once.
///
/// Without --data a demonstration runs on the bundled recordings: a small model with random
/// weights is trained on trees and, beside it, on separate trajectories.
#[derive(Parser, Debug, Clone)]
#[command(name = "fine-tune", version)]
pub struct Args {
    /// Trajectories: JSON lines with token ids or messages, gzipped or not; may be repeated.
    #[arg(long, short, value_name = "FILE", help_heading = "Data")]
    pub data: Vec<PathBuf>,
    /// Chat template (Jinja) for message trajectories.
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub template: Option<PathBuf>,
    /// tokenizer.json for message trajectories; the model folder's own if not given.
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub tokenizer: Option<PathBuf>,
    /// Tool schemas (JSON) for message trajectories: one list, or an object of lists by task.
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub tools: Option<PathBuf>,
    /// Which trajectories of a task are trained.
    #[arg(long, value_enum, default_value_t = Selection::All, help_heading = "Data")]
    pub select: Selection,
    /// Only these tasks, by id, separated by commas.
    #[arg(
        long,
        value_name = "ID,...",
        value_delimiter = ',',
        help_heading = "Data"
    )]
    pub tasks: Vec<String>,
    /// Whole tasks held out for validation: this share of them, chosen by the seed.
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.0,
        help_heading = "Data"
    )]
    pub validation_fraction: f64,
    /// Longest trajectory in tokens.
    #[arg(long, value_name = "TOKENS", help_heading = "Data")]
    pub max_length: Option<NonZeroUsize>,
    /// What happens to longer ones.
    #[arg(long, value_enum, default_value_t = TooLong::Error, help_heading = "Data")]
    pub too_long: TooLong,

    /// A folder with config.json and safetensors files; or a config.json, or the name of a built-in
    /// shape (tiny, tiny-moe, tiny-hybrid, small, 0.6b, hybrid), for random weights.
    #[arg(
        long,
        short,
        value_name = "FOLDER|FILE|NAME",
        default_value = "tiny",
        help_heading = "Model"
    )]
    pub model: String,
    /// Renumber the token ids to those that occur in the data, so that the language-model head of a
    /// model with random weights does not dominate.
    #[arg(long, help_heading = "Model")]
    pub compact_vocab: bool,
    /// Dtype of the blocks in the forward and backward pass; parameters, norms and the optimizer
    /// stay f32.
    #[arg(long, value_enum, default_value_t = ComputeDtype::F32, help_heading = "Model")]
    pub compute_dtype: ComputeDtype,
    /// Dtype of embedding and head in the forward and backward pass.
    #[arg(long, value_enum, default_value_t = ComputeDtype::F32, help_heading = "Model")]
    pub head_dtype: ComputeDtype,
    /// Rows projected on the vocabulary at a time; about 16 million logits if not given. A GPU wants
    /// thousands.
    #[arg(long, value_name = "ROWS", help_heading = "Model")]
    pub head_chunk_rows: Option<NonZeroUsize>,
    /// Train low-rank adapters of this rank on all projections of the blocks, and nothing else.
    #[arg(long, value_name = "RANK", help_heading = "Model")]
    pub lora_rank: Option<NonZeroUsize>,
    /// Adapters are scaled by alpha / rank.
    #[arg(
        long,
        value_name = "ALPHA",
        default_value_t = 16.0,
        help_heading = "Model"
    )]
    pub lora_alpha: f64,

    /// Passes over the data [default: 1].
    #[arg(long, help_heading = "Training")]
    pub epochs: Option<NonZeroUsize>,
    /// Stop after this many optimizer steps, if the epochs have more.
    #[arg(long, value_name = "STEPS", help_heading = "Training")]
    pub max_steps: Option<NonZeroUsize>,
    /// Tasks of one optimizer step [default: 4].
    #[arg(long, value_name = "TASKS", help_heading = "Training")]
    pub tasks_per_step: Option<NonZeroUsize>,
    /// Tokens of one pack; a step is split into as many packs as it needs. The largest tree or
    /// 8192, whichever is more, if not given.
    #[arg(long, value_name = "TOKENS", help_heading = "Training")]
    pub token_budget: Option<NonZeroUsize>,
    /// How a prediction that several trajectories share counts.
    #[arg(long, value_enum, default_value_t = ObjectiveArg::PerPath, help_heading = "Training")]
    pub objective: ObjectiveArg,
    /// How the losses of a step are averaged: sum, sep-avg, trajectory-mean, token-mean,
    /// weighted-token-mean, unique-mean, constant:DIVISOR or
    /// constant-length:LONGEST.
    #[arg(long, default_value = "token-mean", help_heading = "Training")]
    pub aggregation: Aggregation,
    /// Highest learning rate.
    #[arg(
        long,
        value_name = "RATE",
        default_value_t = 1e-3,
        help_heading = "Training"
    )]
    pub learning_rate: f64,
    /// Learning rate at the end of the cosine.
    #[arg(
        long,
        value_name = "RATE",
        default_value_t = 0.0,
        help_heading = "Training"
    )]
    pub min_learning_rate: f64,
    /// Steps of linear warm-up.
    #[arg(
        long,
        value_name = "STEPS",
        default_value_t = 0,
        help_heading = "Training"
    )]
    pub warmup_steps: usize,
    /// Learning rate after the warm-up.
    #[arg(long, value_enum, default_value_t = Decay::Cosine, help_heading = "Training")]
    pub decay: Decay,
    /// AdamW's decoupled weight decay, of matrices only.
    #[arg(long, default_value_t = 0.0, help_heading = "Training")]
    pub weight_decay: f64,
    /// AdamW's decay of the first moment.
    #[arg(long, default_value_t = 0.9, help_heading = "Training")]
    pub beta1: f64,
    /// AdamW's decay of the second moment.
    #[arg(long, default_value_t = 0.95, help_heading = "Training")]
    pub beta2: f64,
    /// AdamW's epsilon.
    #[arg(long, default_value_t = 1e-8, help_heading = "Training")]
    pub epsilon: f64,
    /// Gradients are scaled down to this global norm; 0 turns clipping off.
    #[arg(
        long,
        value_name = "NORM",
        default_value_t = 1.0,
        help_heading = "Training"
    )]
    pub max_grad_norm: f64,
    /// Seed of initial weights, adapters, validation split and data order.
    #[arg(long, default_value_t = 0, help_heading = "Training")]
    pub seed: u64,
    /// Where to compute: one of the backends this program was built with, as `name` or `name:index`.
    #[arg(long, default_value = "flex", help_heading = "Training")]
    pub device: String,

    /// The baseline: train on separate trajectories, packed into rows of the same budget.
    #[arg(long, conflicts_with = "compare", help_heading = "Comparison")]
    pub no_tree: bool,
    /// Make every step twice, on trees and on separate trajectories, each with its own copy of the
    /// model, and report losses and times side by side.
    #[arg(long, help_heading = "Comparison")]
    pub compare: bool,

    /// Folder for metrics, pictures and checkpoints; a new one under `runs` if not given.
    #[arg(long, short, value_name = "FOLDER", help_heading = "Output")]
    pub output: Option<PathBuf>,
    /// Write a checkpoint every so many steps; 0 for none.
    #[arg(
        long,
        value_name = "STEPS",
        default_value_t = 0,
        help_heading = "Output"
    )]
    pub checkpoint_every: usize,
    /// Checkpoints kept.
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "2",
        help_heading = "Output"
    )]
    pub keep_checkpoints: NonZeroUsize,
    /// Continue the run in this output folder (or from this checkpoint in it) exactly where it
    /// was; all other options must be as they were.
    #[arg(
        long,
        value_name = "FOLDER",
        conflicts_with_all = ["compare", "output"],
        help_heading = "Output"
    )]
    pub resume: Option<PathBuf>,
    /// Evaluate the validation tasks every so many steps, and at the end; 0 for only at the end.
    #[arg(
        long,
        value_name = "STEPS",
        default_value_t = 0,
        help_heading = "Output"
    )]
    pub validate_every: usize,
    /// Write the trained model as a folder that other programs load (config.json and safetensors).
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    pub export: Option<PathBuf>,
    /// Of a run with adapters: export them alone, or merged into the model.
    #[arg(long, value_enum, default_value_t = LoraExport::Peft, help_heading = "Output")]
    pub lora_export: LoraExport,
}

/// Dtype of the forward and backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeDtype {
    /// 32-bit floats.
    F32,
    /// bfloat16 with f32 parameters.
    Bf16,
}

impl Args {
    /// Passes over the data.
    pub fn epochs(&self) -> usize {
        self.epochs.map_or(1, NonZeroUsize::get)
    }

    /// Tasks of one optimizer step.
    pub fn tasks_per_step(&self) -> NonZeroUsize {
        const DEFAULT: NonZeroUsize = NonZeroUsize::new(4).unwrap();
        self.tasks_per_step.unwrap_or(DEFAULT)
    }
}

impl ComputeDtype {
    /// The dtype of tensors.
    pub fn dtype(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::Bf16 => FloatDType::BF16,
        }
    }
}

/// What `--export` writes of a run with adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoraExport {
    /// The adapters alone, as PEFT reads them.
    Peft,
    /// The whole model with the adapters added to its weights.
    Merged,
}

/// [`Objective`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectiveArg {
    /// Once for every trajectory through it.
    PerPath,
    /// The same: predictions are merged where that changes nothing, which for this loss is always.
    PerOccurrence,
    /// Once, however many trajectories share it.
    Unique,
}

impl From<ObjectiveArg> for Objective {
    fn from(objective: ObjectiveArg) -> Self {
        match objective {
            ObjectiveArg::PerPath => Self::PerPath,
            ObjectiveArg::PerOccurrence => Self::PerOccurrence,
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

    #[test]
    fn comparing_excludes_the_baseline_alone_and_resuming() {
        for other in [&["--no-tree"][..], &["--resume", "runs/1"]] {
            let line = ["fine-tune", "--compare"].iter().chain(other);
            assert!(Args::try_parse_from(line).is_err());
        }
    }
}
