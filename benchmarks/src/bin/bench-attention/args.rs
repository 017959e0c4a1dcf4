//! The command line.

use std::path::PathBuf;

use clap::Parser;
use tree_training_benchmarks::attention::Heads;
use tree_training_benchmarks::{Dtype, HeadCounts, Implementation};

/// TFLOP/s of tree attention, forward and backward, by tree.
///
/// Model FLOPs are 4 d per visible (query, key) pair and query head in the forward pass, and 2.5
/// times that in the backward pass.
#[derive(Parser, Debug, Clone)]
#[command(name = "bench-attention", version)]
pub struct Args {
    /// Device.
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Tokens of the synthetic trees, and largest number of tokens of the recorded pack.
    #[arg(long, default_value_t = 16_384)]
    pub rows: usize,
    /// Trees: star16, comb, leaf40, causal, and recorded (a pack of the recorded runs).
    #[arg(
        long,
        value_delimiter = ',',
        default_values = ["star16", "comb", "leaf40", "causal", "recorded"]
    )]
    pub trees: Vec<String>,
    /// Recorded runs in token form.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "data/tokens/toolbench_dfsdt.jsonl.gz"
    )]
    pub data: PathBuf,
    /// Query and key/value heads.
    #[arg(long, value_delimiter = ',', default_values = ["16/8", "32/8"])]
    pub heads: Vec<HeadCounts>,
    /// Features of a head.
    #[arg(long, default_value_t = 128)]
    pub head_dim: usize,
    /// Dtypes of the inputs.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Dtype::F32])]
    pub dtypes: Vec<Dtype>,
    /// Implementations of the operation.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_values_t = [Implementation::Automatic]
    )]
    pub implementations: Vec<Implementation>,
    /// Measurements, whose median is taken.
    #[arg(long, default_value_t = 5)]
    pub samples: usize,
    /// Runs per measurement.
    #[arg(long, default_value_t = 10)]
    pub runs: usize,
    /// Rows of the comparison with Burn's attention; default: no comparison.
    #[arg(long, value_delimiter = ',')]
    pub burn_rows: Vec<usize>,
    /// Rows and keys per head to check against a computation in f64; 0 disables the check.
    #[arg(long, default_value_t = 64)]
    pub checked: usize,
    /// Seed of the checked rows and keys; default: other ones in every run.
    #[arg(long, default_value_t = rand::random(), hide_default_value = true)]
    pub seed: u64,
    /// Only save the packs in this folder, for other programs.
    #[arg(long, value_name = "FOLDER")]
    pub write_packs: Option<PathBuf>,
    /// Write all results as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Args {
    /// Numbers of heads and their features.
    pub fn heads(&self) -> impl Iterator<Item = Heads> {
        self.heads.iter().map(|counts| Heads {
            query: counts.0,
            key_value: counts.1,
            dim: self.head_dim,
        })
    }
}
