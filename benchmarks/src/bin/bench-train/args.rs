//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use burn_tree_trainer::options::ComputeDtype;
use clap::{Parser, ValueEnum};
use tree_pack::Partitioning;

/// Times optimizer steps on trees and the same steps on separate trajectories, with a random model.
///
/// Both are packed into the same token budget and use the same operations. Synthetic steps have
/// trajectories of the same lengths at every overlap, so the step on separate trajectories is the
/// same work and is timed once. Of each recorded file, one step of its first tasks is timed.
#[derive(Parser, Debug, Clone)]
#[command(name = "bench-train", version)]
pub struct Args {
    /// Device.
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Configuration of the model: tiny, tiny-hybrid, small, 0.6b, 4b or hybrid (18 of 24 blocks
    /// recurrent).
    #[arg(long, default_value = "tiny")]
    pub model: String,
    /// Vocabulary size of the model.
    #[arg(long, default_value_t = 151_936)]
    pub vocab: usize,
    /// Dtype of the blocks in the forward and backward pass; norms stay f32.
    #[arg(long, value_enum, default_value_t = ComputeDtype::F32)]
    pub dtype: ComputeDtype,
    /// Dtype of embedding and head in the forward and backward pass.
    #[arg(long, value_enum, default_value_t = ComputeDtype::F32)]
    pub head_dtype: ComputeDtype,
    /// Rows projected on the vocabulary at a time.
    #[arg(long, value_name = "ROWS")]
    pub head_chunk_rows: Option<NonZeroUsize>,
    /// Prefix overlap ratios of the synthetic steps.
    #[arg(long, value_delimiter = ',', default_values_t = [0.2, 0.4, 0.6, 0.8, 0.92])]
    pub overlaps: Vec<f64>,
    /// Tokens of each trajectory of a synthetic step.
    #[arg(long, default_value_t = 2048)]
    pub length: usize,
    /// Trees in a synthetic step, of 16 trajectories each.
    #[arg(long, default_value = "8")]
    pub trees: NonZeroUsize,
    /// Recorded runs in token form; one step per file.
    #[arg(long, value_name = "FILE")]
    pub data: Vec<PathBuf>,
    /// Largest number of tokens of the trajectories in a step of recorded runs, which takes whole
    /// tasks in the order of the file.
    #[arg(long, value_name = "TOKENS", default_value_t = 131_072)]
    pub step_tokens: usize,
    /// Token budget of a pack.
    #[arg(long, default_value = "32768")]
    pub token_budget: NonZeroUsize,
    /// Partitioning of trees over the budget; several are measured one after another. Separate
    /// trajectories are not partitioned.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Parts::Refuse])]
    pub partitioning: Vec<Parts>,
    /// Activation checkpointing: recompute blocks in their backward pass.
    #[arg(long)]
    pub recompute: bool,
    /// Host offload: keep tensors that are not in use in host memory.
    #[arg(long)]
    pub offload: bool,
    /// Calibrate with a few small steps first, and compare predicted with measured times.
    #[arg(long)]
    pub predict: bool,
    /// Untimed steps. The second step is the first whose optimizer has a state, and compiles
    /// kernels for it.
    #[arg(long, default_value_t = 2)]
    pub warm_up: usize,
    /// Timed steps.
    #[arg(long, default_value = "3")]
    pub repetitions: NonZeroUsize,
    /// Also time the phases of a step and the operations of a block.
    #[arg(long)]
    pub parts: bool,
    /// Only save the packed steps in this folder, for other programs.
    #[arg(long, value_name = "FOLDER")]
    pub write_packs: Option<PathBuf>,
    /// Write all results as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// [`Partitioning`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Parts {
    /// Report an error.
    Refuse,
    /// Connected parts, as few as possible.
    Connected,
    /// Parts that may have several roots.
    Shared,
    /// Every node is a part.
    PerNode,
    /// Smaller trees that repeat their common prefixes.
    RepeatedPrefixes,
}

impl From<Parts> for Partitioning {
    fn from(parts: Parts) -> Self {
        match parts {
            Parts::Refuse => Self::Refuse,
            Parts::Connected => Self::Connected,
            Parts::Shared => Self::Shared,
            Parts::PerNode => Self::PerNode,
            Parts::RepeatedPrefixes => Self::RepeatedPrefixes,
        }
    }
}
