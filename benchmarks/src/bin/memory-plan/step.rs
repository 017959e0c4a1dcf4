//! A training step of a known shape, and its memory.

use std::num::NonZeroUsize;
use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::FloatDType;
use burn_tree_models::ModelSize;
use burn_tree_models::Precision;
use burn_tree_models::{CausalLm, ModelConfig};
use burn_tree_nn::TokenLogProbs;
use burn_tree_train::{StepOptions, check_device, sft_loss, step_gradients};
use burn_tree_trainer::device::device_by_name;
use burn_tree_trainer::loss::Supervised;
use burn_tree_trainer::memory::{
    BytesInUse, MemoryEstimate, MemoryOptions, StepRows, bytes_in_use, peak_memory,
};
use burn_tree_trainer::optim::adamw::{AdamWOptions, adamw};
use burn_tree_trainer::optim::optimizer_step::Trainer;
use burn_tree_trainer::options::ComputeDtype;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tree_pack::{
    OccurrenceBatch, PackOptions, PackedStep, Partitioning, Trajectory, build_forests, pack_step,
};

const ADAMW: AdamWOptions = AdamWOptions {
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.1,
};

/// Options of the step.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Device.
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Built-in configuration.
    #[arg(long, default_value = "small")]
    pub model: String,
    /// Vocabulary size.
    #[arg(long, default_value_t = 4096)]
    pub vocab: usize,
    /// Dtype of the forward and backward pass.
    #[arg(long, value_enum, default_value_t = ComputeDtype::F32)]
    pub dtype: ComputeDtype,
    /// Shape of the step.
    #[arg(long, value_enum, default_value_t = Shape::Chain)]
    pub shape: Shape,
    /// Tokens of a pack.
    #[arg(long, default_value = "1024")]
    pub rows: NonZeroUsize,
    /// Packs of the chain, or branches of the star.
    #[arg(long, default_value = "1")]
    pub parts: NonZeroUsize,
    /// Activation checkpointing: recompute blocks in their backward pass.
    #[arg(long)]
    pub recompute: bool,
    /// Host offload: keep tensors that are not in use in host memory.
    #[arg(long)]
    pub offload: bool,
}

/// The shape of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One path, cut into parts.
    Chain,
    /// A prompt as large as a pack, and branches as large as a pack.
    Star,
}

/// The measurements of a step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Peak memory: of the tensors on a device with a memory pool; otherwise of the process, less
    /// its memory before the model was created.
    pub peak_bytes: u64,
    /// The estimate.
    pub estimate: u64,
    /// On a device with a memory pool: peak of the forward and backward passes of a step, without
    /// the model, its compute copy and the sum of gradients.
    pub activation_bytes: Option<u64>,
    /// On a device with a memory pool: bytes reserved by the allocator.
    pub reserved_bytes: Option<u64>,
    /// Seconds of the forward and backward passes.
    pub seconds: f64,
    /// Packs of the step.
    pub packs: usize,
    /// Loss of the step.
    pub loss: f64,
}

/// Runs two steps, since only the second has an optimizer with a state, and the passes of two more.
pub fn run(options: &Options) -> Result<()> {
    let step = packed_step(options)?;
    let config = ModelConfig::named(&options.model, options.vocab)?;
    let device = device_by_name(&options.device)?.autodiff();
    let before_model = peak_memory();
    let model = CausalLm::random(&config, 0, FloatDType::F32, &device);
    let mut trainer = Trainer {
        optimizer: adamw(&model, &ADAMW, &device),
        model,
        max_gradient_norm: Some(1.0),
        precision: Precision {
            blocks: options.dtype.dtype(),
            head: options.dtype.dtype(),
        },
        options: StepOptions {
            recompute: options.recompute,
            offload: options.offload,
            ..StepOptions::default()
        },
        device: device.clone(),
    };
    trainer.step(&step, &Supervised, 1e-4.into())?;
    let second = || trainer.step(&step, &Supervised, 1e-4.into());
    let (outcome, in_use) = bytes_in_use(&device, second);
    let loss = outcome?.loss;
    let (result, in_use_by_passes) = bytes_in_use(&device, || passes(&trainer, &step));
    result?;
    let start = Instant::now();
    passes(&trainer, &step)?;
    let seconds = start.elapsed().as_secs_f64();
    let size = ModelSize::new(&config, None);
    let run = MemoryOptions {
        compute_bytes: options.dtype.bytes(),
        recompute: options.recompute,
        // On devices that use system memory, offloaded tensors stay in the same memory.
        offload: options.offload && in_use.is_some(),
        ..MemoryOptions::F32
    };
    let peak_bytes = match in_use {
        Some(in_use) => in_use.peak,
        None => {
            let peak = peak_memory().zip(before_model);
            let (peak, before) =
                peak.context("the system does not report the memory of a process")?;
            peak - before
        }
    };
    let step_size = StepRows::of_packs(&step.packs, config.is_hybrid());
    let estimate = MemoryEstimate::new(&config, &size, &run, &step_size);
    // In the compute dtype, for the duration of the step.
    let copies = estimate.parameters - 4 * size.parameters;
    let sums = match options.recompute || step.packs.len() > 1 {
        true => 4 * size.trained_parameters,
        false => 0,
    };
    let of_passes = |BytesInUse { before, peak }| (peak - before).saturating_sub(copies + sums);
    let pool = device.inner().memory_pool_usage();
    let outcome = Outcome {
        peak_bytes,
        estimate: estimate.total(),
        activation_bytes: in_use_by_passes.map(of_passes),
        reserved_bytes: pool.map(|usage| usage.bytes_reserved),
        seconds,
        packs: step.packs.len(),
        loss,
    };
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// Runs the forward and backward passes and drops their results.
fn passes(trainer: &Trainer<CausalLm>, step: &PackedStep) -> Result<()> {
    let Trainer {
        options, device, ..
    } = trainer;
    let worker = trainer.precision.shadow(&trainer.model);
    let of_pack =
        |_, output: TokenLogProbs, occurrences: &OccurrenceBatch| sft_loss(output, occurrences);
    let gradients = step_gradients(&worker, step, options, device, of_pack)?;
    check_device(device)?;
    drop(gradients);
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
