//! What decides how a run goes: kept in its checkpoints, and checked when it is resumed.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tree_pack::Trajectory;
use tree_training_examples::training::data::Data;
use tree_training_examples::training::schedule::Schedule;

use crate::args::Args;

/// Refuses combinations of options that make no sense, before anything is read.
pub fn check(args: &Args) -> Result<()> {
    if args.validate_every > 0 && args.validation_fraction == 0.0 {
        bail!("--validate-every needs tasks to validate on: give a --validation-fraction");
    }
    if args.compare && args.checkpoint_every > 0 {
        bail!("--compare measures two models side by side and writes no checkpoints");
    }
    if !args.max_grad_norm.is_finite() || args.max_grad_norm < 0.0 {
        bail!(
            "--max-grad-norm {}: expected 0 (no clipping) or more",
            args.max_grad_norm
        );
    }
    for (option, value) in [("--beta1", args.beta1), ("--beta2", args.beta2)] {
        if !(0.0..1.0).contains(&value) {
            bail!("{option} {value}: expected at least 0 and less than 1");
        }
    }
    if !args.epsilon.is_finite() || args.epsilon <= 0.0 {
        bail!("--epsilon {}: expected more than 0", args.epsilon);
    }
    if !args.weight_decay.is_finite() || args.weight_decay < 0.0 {
        bail!("--weight-decay {}: expected 0 or more", args.weight_decay);
    }
    if let Some(folder) = &args.export
        && folder
            .read_dir()
            .is_ok_and(|mut entries| entries.next().is_some())
    {
        bail!("--export {}: the folder is not empty", folder.display());
    }
    Ok(())
}

/// The settings of a run, by the names of their options.
pub fn settings(
    args: &Args,
    data: &Data,
    schedule: &Schedule,
    token_budget: usize,
) -> BTreeMap<String, Value> {
    let entries = [
        ("model", json!(args.model)),
        ("compact-vocab", json!(args.compact_vocab)),
        ("compute-dtype", json!(args.compute_dtype)),
        ("head-dtype", json!(args.head_dtype)),
        ("lora-rank", json!(args.lora_rank)),
        ("lora-alpha", json!(args.lora_rank.map(|_| args.lora_alpha))),
        ("training data", json!(digest(&data.training))),
        ("validation data", json!(digest(&data.validation))),
        ("tasks-per-step", json!(args.tasks_per_step())),
        ("token-budget", json!(token_budget)),
        ("no-tree", json!(args.no_tree)),
        ("objective", json!(args.objective)),
        ("aggregation", json!(args.aggregation.to_string())),
        ("learning-rate schedule", json!(schedule)),
        ("weight-decay", json!(args.weight_decay)),
        ("beta1", json!(args.beta1)),
        ("beta2", json!(args.beta2)),
        ("epsilon", json!(args.epsilon)),
        ("max-grad-norm", json!(args.max_grad_norm)),
        ("seed", json!(args.seed)),
    ];
    entries
        .map(|(name, value)| (name.to_string(), value))
        .into()
}

/// A number that differs between different data (64-bit FNV-1a, the same in every build).
fn digest(trajectories: &[Trajectory]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    for trajectory in trajectories {
        add(trajectory.task_id.as_bytes());
        add(&(trajectory.len() as u64).to_le_bytes());
        trajectory
            .tokens
            .iter()
            .for_each(|token| add(&token.to_le_bytes()));
        trajectory
            .loss_mask
            .iter()
            .for_each(|&trained| add(&[u8::from(trained)]));
        add(&trajectory.weight.to_le_bytes());
    }
    format!("{} trajectories, digest {hash:016x}", trajectories.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    #[test]
    fn the_digest_tells_tokens_masks_and_weights_apart() {
        let base = Trajectory::new("a", "0", vec![1, 2], vec![false, true]);
        let mut others = vec![base.clone(); 3];
        others[0].tokens[1] = 3;
        others[1].loss_mask[1] = false;
        others[2].weight = 2.0;
        for other in others {
            assert_ne!(digest(from_ref(&base)), digest(from_ref(&other)));
        }
        let copy = vec![base.clone()];
        assert_eq!(digest(from_ref(&base)), digest(&copy));
    }
}
