//! Command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use tree_training_benchmarks::Dtype;

/// TFLOP/s of the matrix products of linear layers, `linear` of burn-tree-nn beside Burn's own.
#[derive(Debug, Parser)]
pub struct Args {
    /// Device, such as `flex`, `cuda` or `cuda:1`.
    #[arg(long, default_value = "cuda")]
    pub device: String,
    /// Rows of the input.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4096,8192,20920,26240,32768,65536"
    )]
    pub rows: Vec<usize>,
    /// Weights `K x N`. The default are those of the blocks of Qwen3-0.6B, Qwen3-4B and
    /// Qwen3.5-0.8B.
    #[arg(long, value_delimiter = ',', value_parser = shape)]
    pub weights: Vec<[usize; 2]>,
    /// Products of each weight.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Form::value_variants().to_vec())]
    pub forms: Vec<Form>,
    /// Dtype of the tensors.
    #[arg(long, value_enum, default_value = "bf16")]
    pub dtype: Dtype,
    /// Which implementations run.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "linear,burn")]
    pub implementations: Vec<Implementation>,
    /// Milliseconds of a measurement, after a warm-up of a third.
    #[arg(long, default_value_t = 20.0)]
    pub window: f64,
    /// Measurements of a cell, of which the median counts.
    #[arg(long, default_value_t = 5)]
    pub samples: usize,
    /// Writes the results as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Reads lines `form rows K N` from standard input and answers each with one measurement of
    /// `linear` in TFLOP/s: for `products.py`, which takes turns with PyTorch.
    #[arg(long)]
    pub serve: bool,
}

/// A product of a linear layer with input `x [R, K]`, weight `w [K, N]` and gradient `g [R, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// `x w`
    Output,
    /// `g wᵀ`
    GradInput,
    /// `xᵀ g`
    GradWeight,
}

/// What computes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Implementation {
    /// The operation `linear` and its gradients.
    Linear,
    /// Burn's product.
    Burn,
}

fn shape(text: &str) -> Result<[usize; 2], String> {
    let number = |text: &str| text.parse::<usize>().map_err(|error| error.to_string());
    match text.split_once('x') {
        Some((input, output)) => Ok([number(input)?, number(output)?]),
        None => Err("expected K x N, such as 1024x4096".into()),
    }
}
