//! The command line.

use std::path::PathBuf;

use clap::Parser;
use tree_training_benchmarks::delta_rule::DeltaRuleHeads;
use tree_training_benchmarks::{Dtype, HeadCounts, Implementation};

use crate::layers::LayerShape;

/// Times of the gated delta rule on trees relative to one path, of the operations around it, and of
/// whole Gated DeltaNet layers on trees and on separate trajectories.
///
/// Model FLOPs are those of the products in full windows of 64 rows: with 128 features, 5.2 million
/// multiply-adds per window and value head in the forward pass, and 16.3 million in the backward
/// pass.
#[derive(Parser, Debug, Clone)]
#[command(name = "bench-delta-rule", version)]
pub struct Args {
    /// Device.
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Tokens of the synthetic trees, and largest number of tokens of the recorded pack.
    #[arg(long, default_value_t = 16_384)]
    pub rows: usize,
    /// Tokens of the single paths. Trees are compared with the path of as many tokens.
    #[arg(long, value_delimiter = ',', default_values_t = [8192, 16_384, 32_768])]
    pub paths: Vec<usize>,
    /// Trees: star16, comb, leaf40, and recorded (a pack of the recorded runs).
    #[arg(
        long,
        value_delimiter = ',',
        default_values = ["star16", "comb", "leaf40", "recorded"]
    )]
    pub trees: Vec<String>,
    /// Recorded runs in token form.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "data/tokens/toolbench_dfsdt.jsonl.gz"
    )]
    pub data: PathBuf,
    /// Key and value heads.
    #[arg(long, value_delimiter = ',', default_values = ["16/32"])]
    pub heads: Vec<HeadCounts>,
    /// Features of a query, key and value.
    #[arg(long, default_value_t = 128)]
    pub head_dim: usize,
    /// Dtypes of the inputs.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Dtype::F32])]
    pub dtypes: Vec<Dtype>,
    /// Implementations of the gated delta rule.
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
    /// Runs per measurement; layers always have one.
    #[arg(long, default_value_t = 10)]
    pub runs: usize,
    /// Key heads to check, with their value heads, against a computation in f64; 0 disables the
    /// check.
    #[arg(long, default_value_t = 1)]
    pub checked: usize,
    /// Do not time the operations around the gated delta rule.
    #[arg(long)]
    pub no_parts: bool,
    /// Layer shapes.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        num_args = 0..,
        default_values_t = [LayerShape::Qwen3Next, LayerShape::Qwen35_0_8b]
    )]
    pub layers: Vec<LayerShape>,
    /// Tokens of each of the 16 trajectories on which layers are timed.
    #[arg(long, default_value_t = 2048)]
    pub layer_length: usize,
    /// Only print the windows of the trees of these recorded runs, in packs of `--rows` tokens.
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub windows: Vec<PathBuf>,
    /// Write all results as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Args {
    /// Numbers of heads and their features.
    pub fn heads(&self) -> impl Iterator<Item = DeltaRuleHeads> {
        self.heads.iter().map(|counts| DeltaRuleHeads {
            key: counts.0,
            value: counts.1,
            key_dim: self.head_dim,
            value_dim: self.head_dim,
        })
    }
}
