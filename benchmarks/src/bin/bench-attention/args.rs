//! The command line.

use std::path::PathBuf;

use clap::Parser;
use tree_training_benchmarks::attention::Heads;
use tree_training_benchmarks::{Dtype, HeadCounts, Implementation};

/// Useful TFLOP/s of tree attention, forward and backward, by tree.
///
/// Useful operations are 4 d per visible (query, key) pair and query head forward, and 2.5 times
/// that backward.
#[derive(Parser, Debug, Clone)]
#[command(name = "bench-attention", version)]
pub struct Args {
    /// Where to compute.
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Tokens of the synthetic trees, and of the recorded pack at most.
    #[arg(long, default_value_t = 16_384)]
    pub rows: usize,
    /// star16, comb, leaf40, causal, and recorded: a pack of the recorded runs.
    #[arg(
        long,
        value_delimiter = ',',
        default_values = ["star16", "comb", "leaf40", "causal", "recorded"]
    )]
    pub trees: Vec<String>,
    /// Runs in token form of which a pack is made.
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
    /// Measurements of which the median is taken.
    #[arg(long, default_value_t = 5)]
    pub samples: usize,
    /// Runs of one measurement.
    #[arg(long, default_value_t = 10)]
    pub runs: usize,
    /// Rows of the comparison with Burn's own attention; not compared if not given.
    #[arg(long, value_delimiter = ',')]
    pub burn_rows: Vec<usize>,
    /// Rows and keys that are checked in all heads against a computation in f64; 0 checks nothing.
    #[arg(long, default_value_t = 64)]
    pub checked: usize,
    /// Which rows and keys are checked; without it, others in every run.
    #[arg(long, default_value_t = rand::random(), hide_default_value = true)]
    pub seed: u64,
    /// Only save the packs in this folder, for other programs to run.
    #[arg(long, value_name = "FOLDER")]
    pub write_packs: Option<PathBuf>,
    /// Write all figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Args {
    /// Heads with their features.
    pub fn heads(&self) -> impl Iterator<Item = Heads> {
        self.heads.iter().map(|counts| Heads {
            query: counts.0,
            key_value: counts.1,
            dim: self.head_dim,
        })
    }
}
