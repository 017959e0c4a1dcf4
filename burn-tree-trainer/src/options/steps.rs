//! Options of the optimizer steps and of the comparison with separate trajectories.

use std::num::NonZeroUsize;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use tree_pack::Partitioning;

use crate::optim::adamw::AdamWOptions;
use crate::plan::Sharing;
use crate::plan::schedule::{Decay, Schedule, ScheduleError};

/// Options of the optimizer steps.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Training")]
pub struct StepArgs {
    /// Passes over the data [default: 1].
    #[arg(long)]
    pub epochs: Option<NonZeroUsize>,
    /// Stop after this many optimizer steps, if the epochs have more.
    #[arg(long, value_name = "STEPS")]
    pub max_steps: Option<NonZeroUsize>,
    /// Tasks per optimizer step [default: 4].
    #[arg(long, value_name = "TASKS")]
    pub tasks_per_step: Option<NonZeroUsize>,
    /// Token budget of a pack; a step has as many packs as needed. Default: 8192, or the largest
    /// tree if it is larger.
    #[arg(long, value_name = "TOKENS")]
    pub token_budget: Option<NonZeroUsize>,
    /// Treatment of trees larger than --token-budget.
    #[arg(long, value_enum, default_value_t = PartitioningArg::Connected)]
    pub partitioning: PartitioningArg,
    /// Activation checkpointing: keep only the inputs of blocks and recompute the blocks in the
    /// backward pass. Saves memory, costs one more forward pass.
    #[arg(long)]
    pub recompute: bool,
    /// Host offload: keep gradients for rows of other packs in host memory, and with --recompute
    /// the inputs of blocks and the outputs for other packs.
    #[arg(long)]
    pub offload: bool,
    /// Peak learning rate [default: 1e-3; grpo and dpo: 1e-4].
    #[arg(long, value_name = "RATE")]
    pub learning_rate: Option<f64>,
    /// Learning rate at the end of the cosine decay.
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    pub min_learning_rate: f64,
    /// Steps of linear warm-up.
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    pub warmup_steps: usize,
    /// Schedule after the warm-up.
    #[arg(long, value_enum, default_value_t = Decay::Cosine)]
    pub decay: Decay,
    /// Decoupled weight decay of AdamW, for matrices only.
    #[arg(long, default_value_t = 0.0)]
    pub weight_decay: f64,
    /// Decay rate of AdamW's first moment.
    #[arg(long, default_value_t = 0.9)]
    pub beta1: f64,
    /// Decay rate of AdamW's second moment.
    #[arg(long, default_value_t = 0.95)]
    pub beta2: f64,
    /// AdamW's epsilon.
    #[arg(long, default_value_t = 1e-8)]
    pub epsilon: f64,
    /// Gradients are clipped to this global norm; 0 disables clipping.
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    pub max_grad_norm: f64,
    /// Seed of initial weights, adapters, validation split and data order.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Device: one of the backends of this build, as `name` or `name:index`.
    #[arg(long, default_value = "flex")]
    pub device: String,
}

/// [`Partitioning`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PartitioningArg {
    /// Report an error.
    Refuse,
    /// Cut them into connected parts, as few as possible, each a pack of its own.
    Connected,
    /// As `connected`, but sibling subtrees may share a pack, which results in fewer packs.
    Shared,
}

impl From<PartitioningArg> for Partitioning {
    fn from(partitioning: PartitioningArg) -> Self {
        match partitioning {
            PartitioningArg::Refuse => Self::Refuse,
            PartitioningArg::Connected => Self::Connected,
            PartitioningArg::Shared => Self::Shared,
        }
    }
}

impl StepArgs {
    /// Number of epochs.
    pub fn epochs(&self) -> usize {
        self.epochs.map_or(1, NonZeroUsize::get)
    }

    /// Tasks per optimizer step.
    pub fn tasks_per_step(&self) -> NonZeroUsize {
        const DEFAULT: NonZeroUsize = NonZeroUsize::new(4).unwrap();
        self.tasks_per_step.unwrap_or(DEFAULT)
    }

    /// The options of AdamW.
    pub fn adamw(&self) -> AdamWOptions {
        AdamWOptions {
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
        }
    }

    /// The learning-rate schedule of a run with the given number of steps per epoch. Its peak is
    /// `default_rate` unless the option is set.
    ///
    /// # Errors
    /// [`ScheduleError`] if the schedule is invalid.
    pub fn schedule(
        &self,
        steps_per_epoch: usize,
        default_rate: f64,
    ) -> Result<Schedule, ScheduleError> {
        let steps = steps_per_epoch.saturating_mul(self.epochs());
        let schedule = Schedule {
            peak: self.learning_rate.unwrap_or(default_rate),
            minimum: self.min_learning_rate,
            warmup_steps: self.warmup_steps,
            total_steps: self.max_steps.map_or(steps, |most| steps.min(most.get())),
            decay: self.decay,
        };
        schedule.init(0)?;
        Ok(schedule)
    }

    pub(super) fn check(&self) -> Result<()> {
        if !self.max_grad_norm.is_finite() || self.max_grad_norm < 0.0 {
            bail!(
                "--max-grad-norm {}: expected 0 (no clipping) or more",
                self.max_grad_norm
            );
        }
        for (option, value) in [("--beta1", self.beta1), ("--beta2", self.beta2)] {
            if !(0.0..1.0).contains(&value) {
                bail!("{option} {value}: expected at least 0 and less than 1");
            }
        }
        if !self.epsilon.is_finite() || self.epsilon <= 0.0 {
            bail!("--epsilon {}: expected more than 0", self.epsilon);
        }
        if !self.weight_decay.is_finite() || self.weight_decay < 0.0 {
            bail!("--weight-decay {}: expected 0 or more", self.weight_decay);
        }
        Ok(())
    }
}

/// Options of the comparison.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Comparison")]
pub struct ComparisonArgs {
    /// Whether common prefixes of the trajectories of a task are computed once (`tree`), per
    /// trajectory (`flat`, the baseline), or whichever is faster for the task (`auto`).
    #[arg(long, value_enum, default_value_t = Sharing::Tree)]
    pub sharing: Sharing,
    /// Device memory in GB (10^9 bytes) that `--sharing auto` may use; default: the available
    /// system memory on devices that use it, otherwise no limit.
    #[arg(long, value_name = "GB")]
    pub device_memory: Option<f64>,
    /// Compute every step twice, on trees (or as `--sharing` says) and on separate trajectories,
    /// each with its own copy of the model, and report losses and times side by side.
    #[arg(long)]
    pub compare: bool,
}

impl ComparisonArgs {
    /// The variants of the run; the first one is validated, reported and exported.
    pub fn sharings(&self) -> &[Sharing] {
        match self.compare {
            true if self.sharing == Sharing::Auto => &[Sharing::Auto, Sharing::Flat],
            true => &[Sharing::Tree, Sharing::Flat],
            false => std::slice::from_ref(&self.sharing),
        }
    }

    /// [`device_memory`](Self::device_memory) in bytes.
    pub fn device_bytes(&self) -> Option<u64> {
        self.device_memory.map(|gigabytes| (gigabytes * 1e9) as u64)
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.compare && self.sharing == Sharing::Flat {
            bail!(
                "--compare compares trees with separate trajectories: expected no --sharing flat"
            );
        }
        match self.device_memory {
            Some(gigabytes) if !(gigabytes.is_finite() && gigabytes > 0.0) => {
                bail!("--device-memory {gigabytes}: expected more than 0");
            }
            _ => Ok(()),
        }
    }
}
