//! Tests of the models of all families.

mod configuration;
mod llama;
mod lora;
mod moe;
mod qwen2;
mod qwen3;
mod reference;
mod rope;
mod shadow;
mod weights;

use std::path::{Path, PathBuf};

use burn::tensor::{Device, FloatDType, TensorData};
use burn_tree_models::{CausalLm, ModelConfig};
use tree_pack::{LossForm, PackOptions, Trajectory, TreeBatch, build_forests, pack_step};

/// The models of the fixtures.
const MODELS: [&str; 9] = [
    "qwen3_dense",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_text",
    "llama3",
    "llama3_tied",
    "llama_linear",
    "qwen2",
    "qwen2_yarn",
];

/// The models of the Qwen3 family.
const QWEN3_MODELS: [&str; 4] = ["qwen3_dense", "qwen3_moe", "qwen3_next", "qwen3_5_text"];

/// Whether the model has recurrent blocks.
fn is_hybrid(model: &str) -> bool {
    ["qwen3_next", "qwen3_5_text"].contains(&model)
}

fn fixtures() -> PathBuf {
    match std::env::var_os("TREE_FIXTURES") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures"),
    }
}

fn load(model: &str, dtype: FloatDType, device: &Device) -> CausalLm {
    CausalLm::load(&fixtures().join(model), dtype, device)
        .unwrap()
        .0
}

fn config(model: &str) -> ModelConfig {
    ModelConfig::from_file(&fixtures().join(model)).unwrap()
}

fn floats(data: TensorData) -> Vec<f64> {
    data.iter::<f64>().collect()
}

/// Four trajectories of one tree: a fork, a duplicate and a strict prefix.
fn trajectories() -> Vec<Trajectory> {
    [
        vec![7, 11, 13, 17, 19, 23],
        vec![7, 11, 13, 29, 31],
        vec![7, 11, 13, 29, 31],
        vec![7, 11, 13],
    ]
    .into_iter()
    .map(|tokens: Vec<u32>| {
        let mask = vec![true; tokens.len()];
        Trajectory::new("task", "rollout", tokens, mask)
    })
    .collect()
}

/// The trajectories as one row with three rows of padding.
fn tree_batch(trajectories: &[Trajectory], dtype: FloatDType, device: &Device) -> TreeBatch {
    let forests = build_forests(trajectories).unwrap();
    let options = PackOptions {
        pad_to_multiple: 11,
        loss: LossForm::LogLikelihood,
        ..PackOptions::new(64)
    };
    let step = pack_step(trajectories, &forests, &options).unwrap();
    TreeBatch::with_dtype(&step.packs, device, dtype)
}
