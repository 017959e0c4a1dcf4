//! The gated delta rule on one tree.

use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::{DType, Device, Tensor};
use burn_tree_ssm::Implementation;
use burn_tree_trainer::report::timing::{Repetitions, seconds_with_results, wait};
use serde::Serialize;
use tree_training_benchmarks::delta_rule::errors::Errors;
use tree_training_benchmarks::delta_rule::{DeltaRuleGradients, DeltaRuleHeads, DeltaRuleInputs};
use tree_training_benchmarks::packs::NamedPack;
use tree_training_benchmarks::repeated::{Repeated, Repetition, differ};
use tree_training_benchmarks::windows::WindowStats;

use crate::recurrence;

/// One tree, dtype, head configuration and implementation.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Name of the tree: `path16384`, `star16`, ..., or `recorded`.
    pub tree: String,
    /// Numbers of heads and their features.
    pub heads: String,
    /// Dtype of the inputs.
    pub dtype: String,
    /// Implementation.
    pub implementation: String,
    /// Windows of the tree.
    pub windows: WindowStats,
    /// Host time of building the windows.
    pub recurrence_seconds: f64,
    /// Seconds of the forward pass.
    pub forward_seconds: f64,
    /// Seconds of the backward pass.
    pub backward_seconds: f64,
    /// Forward and backward time per token, relative to one path of (nearly) as many tokens; `None`
    /// without such a path.
    pub relative_to_path: Option<[f64; 2]>,
    /// Forward FLOP/s of the products in full windows.
    pub forward_flops_per_second: f64,
    /// Backward FLOP/s of the products in full windows.
    pub backward_flops_per_second: f64,
    /// Memory reserved for one forward and one backward pass besides the inputs, if the device
    /// reports it.
    pub bytes: Option<u64>,
    /// Errors relative to the token recurrence in f64.
    pub errors: Option<Errors>,
    /// Repetitions of the forward pass, compared with its first run.
    pub forward_repeated: Repeated,
    /// Repetitions of the backward pass, compared with its first run.
    pub backward_repeated: Repeated,
}

/// The setting of the measurements.
pub struct Setting<'a> {
    /// Numbers of heads and their features.
    pub heads: DeltaRuleHeads,
    /// Dtype of the inputs.
    pub dtype: DType,
    /// Implementation.
    pub implementation: Implementation,
    /// Device.
    pub device: &'a Device,
    /// Repetitions.
    pub repetitions: Repetitions,
    /// Number of key heads to check.
    pub checked: usize,
}

impl Setting<'_> {
    /// Times and checks both passes. `before` has earlier results, among them the path to compare
    /// with.
    pub fn measure(&self, pack: &NamedPack, before: &[Measured]) -> Result<Measured> {
        let start = Instant::now();
        let recurrence = recurrence(pack);
        let recurrence_seconds = start.elapsed().as_secs_f64();
        let Setting {
            heads,
            dtype,
            implementation,
            device,
            ..
        } = *self;
        let inputs = DeltaRuleInputs::random(&recurrence, heads, dtype, implementation, device)
            .with_context(|| format!("{implementation:?} in {dtype:?}"))?;

        device.memory_cleanup();
        wait(device);
        let reserved = || device.memory_pool_usage().map(|usage| usage.bytes_reserved);
        let reserved_before = reserved();
        let output = inputs.forward();
        let gradients = inputs.backward(&output);
        wait(device);
        let bytes = reserved()
            .zip(reserved_before)
            .map(|(after, before)| after.saturating_sub(before));
        let errors = (self.checked > 0).then(|| {
            let groups = checked_groups(self.checked, heads.key);
            Errors::new(&inputs, &output, &gradients, &groups)
        });

        let mut forward = Repetition::new(device);
        let forward_seconds = seconds_with_results(
            device,
            self.repetitions,
            || inputs.forward(),
            |again| forward.add(differ(&output.output, again.output)),
        );
        let mut backward = Repetition::new(device);
        let backward_seconds = seconds_with_results(
            device,
            self.repetitions,
            || inputs.backward(&output),
            |again| backward.add(gradients_differ(&gradients, again)),
        );
        let tokens = pack.step.packs[0].layout.len();
        let mut measured = Measured {
            tree: pack.name.clone(),
            heads: format!("{}/{} x {}", heads.key, heads.value, heads.value_dim),
            dtype: format!("{dtype:?}").to_lowercase(),
            implementation: format!("{implementation:?}").to_lowercase(),
            windows: WindowStats::of_packs(&pack.step.packs),
            recurrence_seconds,
            forward_seconds,
            backward_seconds,
            relative_to_path: None,
            forward_flops_per_second: heads.forward_flops(tokens) / forward_seconds,
            backward_flops_per_second: heads.backward_flops(tokens) / backward_seconds,
            bytes,
            errors,
            forward_repeated: forward.result(),
            backward_repeated: backward.result(),
        };
        measured.relative_to_path = measured.relative_to(before);
        Ok(measured)
    }
}

impl Measured {
    /// Times per token relative to a path with the same setting and nearly as many tokens. (The
    /// share of fixed costs depends on the length.)
    fn relative_to(&self, others: &[Self]) -> Option<[f64; 2]> {
        let tokens = self.windows.tokens as f64;
        let length = |path: &Self| path.windows.tokens as f64;
        let path = others.iter().find(|other| {
            other.tree.starts_with("path")
                && (&other.heads, &other.dtype, &other.implementation)
                    == (&self.heads, &self.dtype, &self.implementation)
                && (length(other) / tokens - 1.0).abs() < 0.1
        })?;
        let scale = length(path) / tokens;
        Some([
            scale * self.forward_seconds / path.forward_seconds,
            scale * self.backward_seconds / path.backward_seconds,
        ])
    }
}

/// `count` of `heads` key heads, evenly spaced.
fn checked_groups(count: usize, heads: usize) -> Vec<usize> {
    let count = count.min(heads);
    (0..count).map(|index| index * heads / count).collect()
}

fn gradients_differ(
    first: &DeltaRuleGradients,
    again: DeltaRuleGradients,
) -> Tensor<1, burn::tensor::Bool> {
    differ(&first.query, again.query)
        .bool_or(differ(&first.key, again.key))
        .bool_or(differ(&first.value, again.value))
        .bool_or(differ(&first.log_decay, again.log_decay))
        .bool_or(differ(&first.beta, again.beta))
}
