//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use burn_tree_trainer::options::ComputeDtype;
use clap::{Parser, ValueEnum};
use tree_pack::Partitioning;

/// Times optimizer steps on trees against the same steps on separate trajectories, with a model of
/// random weights.
///
/// Both are packed into rows of the same budget and run through the same operations. Synthetic
/// steps have the same trajectories' lengths at every overlap, so that the separate step is always
/// the same work and is timed once; recorded runs make one step of the first tasks of a file.
#[derive(Parser, Debug, Clone)]
#[command(name = "bench-train", version)]
pub struct Args {
    /// Where to compute.
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Shape of the model: tiny, tiny-hybrid, small, 0.6b, 4b or hybrid (18 of 24 blocks recurrent).
    #[arg(long, default_value = "tiny")]
    pub model: String,
    /// Token ids of the model.
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
    /// Trees of 16 trajectories in a synthetic step.
    #[arg(long, default_value = "8")]
    pub trees: NonZeroUsize,
    /// Recorded runs in token form, one step each.
    #[arg(long, value_name = "FILE")]
    pub data: Vec<PathBuf>,
    /// A step of recorded runs takes whole tasks, in the order of the file, while their trajectories
    /// have no more tokens than this.
    #[arg(long, value_name = "TOKENS", default_value_t = 131_072)]
    pub step_tokens: usize,
    /// Most tokens of a pack.
    #[arg(long, default_value = "32768")]
    pub token_budget: NonZeroUsize,
    /// What becomes of trees over the budget; several are measured one after another. Separate
    /// trajectories are packed whole.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Parts::Refuse])]
    pub partitioning: Vec<Parts>,
    /// Compute blocks again for their backward pass.
    #[arg(long)]
    pub recompute: bool,
    /// Put what waits into host memory.
    #[arg(long)]
    pub offload: bool,
    /// Time a few small steps first, and set the times that they predict beside what is measured.
    #[arg(long)]
    pub predict: bool,
    /// Steps before those that are timed. The second step is the first whose optimizer has a state, and
    /// compiles kernels for it.
    #[arg(long, default_value_t = 2)]
    pub warm_up: usize,
    /// Steps that are timed.
    #[arg(long, default_value = "3")]
    pub repetitions: NonZeroUsize,
    /// Also time the phases of a step and the operations of a block.
    #[arg(long)]
    pub parts: bool,
    /// Only save the packed steps in this folder, for other programs to run.
    #[arg(long, value_name = "FOLDER")]
    pub write_packs: Option<PathBuf>,
    /// Write all figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// [`Partitioning`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Parts {
    /// They are an error.
    Refuse,
    /// Connected parts, as few as possible.
    Connected,
    /// Parts that may have several roots.
    Shared,
    /// Every node is a part.
    PerNode,
    /// Smaller trees, each with all of its ancestors: the shared prefixes are recomputed.
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
