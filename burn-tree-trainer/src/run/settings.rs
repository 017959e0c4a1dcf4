//! Settings that affect the results of a run. They are stored in checkpoints and checked on
//! resumption.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tree_pack::{Advantage, PackOptions, Trajectory};

use crate::data::Data;
use crate::options::RunArgs;
use crate::plan::schedule::Schedule;

/// Settings by name.
pub type Settings = BTreeMap<String, Value>;

/// The settings common to all runs, by the names of their options.
pub fn of_run(args: &RunArgs, data: &Data, packs: &PackOptions, schedule: &Schedule) -> Settings {
    let (model, steps) = (&args.model, &args.steps);
    let entries = [
        ("model", json!(model.model)),
        ("compact-vocab", json!(model.compact_vocab)),
        ("compute-dtype", json!(model.compute_dtype)),
        ("head-dtype", json!(model.head_dtype)),
        ("lora-rank", json!(model.lora_rank)),
        (
            "lora-alpha",
            json!(model.lora_rank.map(|_| model.lora_alpha)),
        ),
        ("training data", json!(digest(&data.training))),
        ("validation data", json!(digest(&data.validation))),
        ("tasks-per-step", json!(steps.tasks_per_step())),
        ("token-budget", json!(packs.token_budget)),
        ("partitioning", json!(steps.partitioning)),
        ("recompute", json!(steps.recompute)),
        ("sharing", json!(args.comparison.sharing)),
        ("aggregation", json!(packs.aggregation.to_string())),
        ("learning-rate schedule", json!(schedule)),
        ("weight-decay", json!(steps.weight_decay)),
        ("beta1", json!(steps.beta1)),
        ("beta2", json!(steps.beta2)),
        ("epsilon", json!(steps.epsilon)),
        ("max-grad-norm", json!(steps.max_grad_norm)),
        ("seed", json!(steps.seed)),
    ];
    entries
        .map(|(name, value)| (name.to_string(), value))
        .into()
}

/// A hash of the data (64-bit FNV-1a, the same in every build).
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
        add(&trajectory.reward.unwrap_or(f32::NAN).to_le_bytes());
        let advantages = match &trajectory.advantage {
            None => &[][..],
            Some(Advantage::Trajectory(value)) => std::slice::from_ref(value),
            Some(Advantage::Token(values)) => values,
        };
        for column in [
            Some(advantages),
            trajectory.old_log_probs.as_deref(),
            trajectory.ref_log_probs.as_deref(),
            trajectory.sampling_log_probs.as_deref(),
        ] {
            let column = column.unwrap_or_default();
            add(&(column.len() as u64).to_le_bytes());
            column.iter().for_each(|value| add(&value.to_le_bytes()));
        }
    }
    format!("{} trajectories, digest {hash:016x}", trajectories.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    #[test]
    fn the_digest_tells_every_field_apart() {
        let base = Trajectory::new("a", "0", vec![1, 2], vec![false, true]);
        let mut others = vec![base.clone(); 6];
        others[0].tokens[1] = 3;
        others[1].loss_mask[1] = false;
        others[2].weight = 2.0;
        others[3].reward = Some(0.0);
        others[4].old_log_probs = Some(vec![-1.0]);
        others[5].ref_log_probs = Some(vec![-1.0]);
        for other in others {
            assert_ne!(digest(from_ref(&base)), digest(from_ref(&other)));
        }
        let copy = vec![base.clone()];
        assert_eq!(digest(from_ref(&base)), digest(&copy));
    }
}
