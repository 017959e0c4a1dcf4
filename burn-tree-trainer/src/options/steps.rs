//! Optimizer steps, and the baseline they are compared with.

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
    /// Tasks of one optimizer step [default: 4].
    #[arg(long, value_name = "TASKS")]
    pub tasks_per_step: Option<NonZeroUsize>,
    /// Tokens of one pack; a step is split into as many packs as it needs. The largest tree or
    /// 8192, whichever is more, if not given.
    #[arg(long, value_name = "TOKENS")]
    pub token_budget: Option<NonZeroUsize>,
    /// What happens to trees larger than --token-budget.
    #[arg(long, value_enum, default_value_t = PartitioningArg::Connected)]
    pub partitioning: PartitioningArg,
    /// Keep only the inputs of blocks for the backward pass, and compute the blocks again: less
    /// memory for one more forward pass.
    #[arg(long)]
    pub recompute: bool,
    /// Keep what waits in host memory: gradients for rows of other packs, and with --recompute the
    /// inputs of blocks and what other packs continue from.
    #[arg(long)]
    pub offload: bool,
    /// Highest learning rate [default: 1e-3; of grpo and dpo 1e-4].
    #[arg(long, value_name = "RATE")]
    pub learning_rate: Option<f64>,
    /// Learning rate at the end of the cosine.
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    pub min_learning_rate: f64,
    /// Steps of linear warm-up.
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    pub warmup_steps: usize,
    /// Learning rate after the warm-up.
    #[arg(long, value_enum, default_value_t = Decay::Cosine)]
    pub decay: Decay,
    /// AdamW's decoupled weight decay, of matrices only.
    #[arg(long, default_value_t = 0.0)]
    pub weight_decay: f64,
    /// AdamW's decay of the first moment.
    #[arg(long, default_value_t = 0.9)]
    pub beta1: f64,
    /// AdamW's decay of the second moment.
    #[arg(long, default_value_t = 0.95)]
    pub beta2: f64,
    /// AdamW's epsilon.
    #[arg(long, default_value_t = 1e-8)]
    pub epsilon: f64,
    /// Gradients are scaled down to this global norm; 0 turns clipping off.
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    pub max_grad_norm: f64,
    /// Seed of initial weights, adapters, validation split and data order.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Where to compute: one of the backends this program was built with, as `name` or
    /// `name:index`.
    #[arg(long, default_value = "flex")]
    pub device: String,
}

/// [`Partitioning`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PartitioningArg {
    /// They are an error.
    Refuse,
    /// They are divided into connected parts, as few as possible, each a pack of its own.
    Connected,
    /// As connected, and sibling subtrees may be in one pack, which makes fewer packs.
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
    /// Passes over the data.
    pub fn epochs(&self) -> usize {
        self.epochs.map_or(1, NonZeroUsize::get)
    }

    /// Tasks of one optimizer step.
    pub fn tasks_per_step(&self) -> NonZeroUsize {
        const DEFAULT: NonZeroUsize = NonZeroUsize::new(4).unwrap();
        self.tasks_per_step.unwrap_or(DEFAULT)
    }

    /// AdamW's settings.
    pub fn adamw(&self) -> AdamWOptions {
        AdamWOptions {
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
        }
    }

    /// The learning rates of a run over data with so many steps in a pass, the highest of which is
    /// `default_rate` unless another is given.
    ///
    /// # Errors
    /// [`ScheduleError`] if they make no schedule.
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

/// Options of the baseline.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Comparison")]
pub struct ComparisonArgs {
    /// Whether trajectories of a task share the computation of their prefixes. `flat` is the
    /// baseline.
    #[arg(long, value_enum, default_value_t = Sharing::Tree)]
    pub sharing: Sharing,
    /// Memory of the device in GB (10^9 bytes), in which the packs of `--sharing auto` have to fit.
    /// If not given, a device that computes in the system's memory has what is left of that.
    #[arg(long, value_name = "GB")]
    pub device_memory: Option<f64>,
    /// Make every step twice, on trees (or as chosen) and on separate trajectories, each with its
    /// own copy of the model, and report losses and times side by side.
    #[arg(long)]
    pub compare: bool,
}

impl ComparisonArgs {
    /// The kinds of passes of the run, that which is reported first at the front.
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
            bail!("--compare sets trees against separate trajectories: leave out --sharing flat");
        }
        match self.device_memory {
            Some(gigabytes) if !(gigabytes.is_finite() && gigabytes > 0.0) => {
                bail!("--device-memory {gigabytes}: expected more than 0");
            }
            _ => Ok(()),
        }
    }
}
