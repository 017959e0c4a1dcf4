//! A training step of a known shape, and the memory that it takes.

use std::num::NonZeroUsize;

use anyhow::{Context, Result};
use burn::tensor::FloatDType;
use burn_tree_train::{LmHeadOptions, StepOptions};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tree_pack::{PackOptions, PackedStep, Partitioning, Trajectory, build_forests, pack_step};
use tree_training_examples::qwen3::{Qwen3, Qwen3Config};
use tree_training_examples::training::adamw::{AdamWOptions, adamw};
use tree_training_examples::training::cost::ModelSize;
use tree_training_examples::training::device::device_by_name;
use tree_training_examples::training::memory::{MemoryEstimate, RunSize, StepSize, peak_memory};
use tree_training_examples::training::objective::Supervised;
use tree_training_examples::training::optimizer_step::{Precision, Trainer};

const ADAMW: AdamWOptions = AdamWOptions {
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.1,
};

/// Its options.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to compute.
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Built-in model.
    #[arg(long, default_value = "small")]
    pub model: String,
    /// Its token ids.
    #[arg(long, default_value_t = 4096)]
    pub vocab: usize,
    /// How its packs hang together.
    #[arg(long, value_enum, default_value_t = Shape::Chain)]
    pub shape: Shape,
    /// Tokens of a pack.
    #[arg(long, default_value = "1024")]
    pub rows: NonZeroUsize,
    /// Packs of the chain, or branches of the star.
    #[arg(long, default_value = "1")]
    pub parts: NonZeroUsize,
    /// Compute blocks again for their backward pass.
    #[arg(long)]
    pub recompute: bool,
    /// Put what waits into host memory.
    #[arg(long)]
    pub offload: bool,
}

/// How packs hang together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One path in parts.
    Chain,
    /// A prompt as large as a pack, and branches as large as a pack.
    Star,
}

/// What a step took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Most memory of the process before there was a model.
    pub before_bytes: u64,
    /// Most memory of the process at its end; on a device, most that its allocator reserved.
    pub peak_bytes: u64,
    /// The estimate of what is between them.
    pub estimate: u64,
    /// The part of it that activations and gateways are.
    pub passes: u64,
    /// Seconds of the second step.
    pub seconds: f64,
    /// Packs of the step.
    pub packs: usize,
    /// Its loss.
    pub loss: f64,
}

/// Makes two steps, of which the second has an optimizer with a state.
pub fn run(options: &Options) -> Result<()> {
    let step = packed_step(options)?;
    let config = Qwen3Config::named(&options.model, options.vocab)?;
    let device = device_by_name(&options.device)?.autodiff();
    let before_bytes = peak_memory().context("the system does not tell a process's memory")?;
    let model = Qwen3::random(&config, 0, FloatDType::F32, &device);
    let mut trainer = Trainer {
        optimizer: adamw(&model, &ADAMW, &device),
        model,
        max_gradient_norm: Some(1.0),
        precision: Precision::F32,
        options: StepOptions {
            head: LmHeadOptions::default(),
            recompute: options.recompute,
            offload: options.offload,
            ..StepOptions::default()
        },
        device: device.clone(),
    };
    trainer.step(&step, &Supervised, 1e-4.into())?;
    let last = trainer.step(&step, &Supervised, 1e-4.into())?;
    let reserved = device.inner().memory_pool_usage();
    let peak_bytes = match reserved {
        Some(usage) => before_bytes + usage.bytes_reserved,
        None => peak_memory().unwrap_or(0),
    };
    let size = ModelSize::new(&config, None);
    let run = RunSize {
        recompute: options.recompute,
        // Without a device of its own, what is offloaded stays in the same memory.
        offload: options.offload && reserved.is_some(),
        ..RunSize::F32
    };
    let step_size = StepSize::of_packs(&step.packs, config.is_hybrid());
    let estimate = MemoryEstimate::new(&config, &size, &run, &step_size);
    let outcome = Outcome {
        before_bytes,
        peak_bytes,
        estimate: estimate.total(),
        passes: estimate.activations + estimate.gateways,
        seconds: last.seconds,
        packs: step.packs.len(),
        loss: last.loss,
    };
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

fn packed_step(options: &Options) -> Result<PackedStep> {
    let (rows, parts) = (options.rows.get(), options.parts.get());
    let path = |name: usize, own: usize, shared: usize| {
        let token = |seed: usize, index: usize| ((seed * 7919 + index * 31) % options.vocab) as u32;
        let shared = (0..shared).map(|index| token(0, index));
        let tokens: Vec<u32> = shared
            .chain((0..own).map(|index| token(name + 1, index)))
            .collect();
        let mask = vec![true; tokens.len()];
        Trajectory::new("task", name.to_string(), tokens, mask)
    };
    let trajectories: Vec<Trajectory> = match options.shape {
        Shape::Chain => vec![path(0, rows * parts, 0)],
        Shape::Star => (0..parts).map(|branch| path(branch, rows, rows)).collect(),
    };
    let options = PackOptions {
        partitioning: Partitioning::Connected,
        ..PackOptions::new(rows)
    };
    let forests = build_forests(&trajectories)?;
    Ok(pack_step(&trajectories, &forests, &options)?)
}
