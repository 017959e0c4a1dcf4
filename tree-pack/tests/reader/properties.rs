//! Every file is read or refused with an error.

use proptest::prelude::*;
use serde_json::{Value, json};
use tree_pack::{Advantage, Trajectory};

use super::{read, reference};

fn to_json(trajectory: &Trajectory) -> Value {
    let mut json = json!({
        "task_id": trajectory.task_id, "rollout_id": trajectory.rollout_id,
        "tokens": trajectory.tokens, "loss_mask": trajectory.loss_mask,
        "old_logps": trajectory.old_log_probs, "ref_logps": trajectory.ref_log_probs,
        "sampling_logps": trajectory.sampling_log_probs, "weight": trajectory.weight,
    });
    match &trajectory.advantage {
        Some(Advantage::Trajectory(value)) => json["advantage"] = json!(value),
        Some(Advantage::Token(values)) => json["advantages"] = json!(values),
        None => {}
    }
    json
}

proptest! {
    #[test]
    fn what_is_written_is_read(trajectories in reference::trajectories(4)) {
        let lines: Vec<String> =
            trajectories.iter().map(|trajectory| to_json(trajectory).to_string()).collect();
        let read: Result<Vec<_>, _> = read(lines.join("\n")).into_iter().collect();
        prop_assert_eq!(read.unwrap(), trajectories);
    }

    #[test]
    fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for trajectory in read(bytes).into_iter().flatten() {
            prop_assert_eq!(trajectory.validate(), Ok(()));
        }
    }

    /// Damaged lines give valid trajectories or errors with file and line.
    #[test]
    fn damaged_lines_give_an_answer(
        trajectories in reference::trajectories(3),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..6),
    ) {
        let lines: Vec<String> =
            trajectories.iter().map(|trajectory| to_json(trajectory).to_string()).collect();
        let mut bytes = lines.join("\r\n").into_bytes();
        for (index, byte, kind) in damage {
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ if bytes.len() > 1 => { bytes.remove(at); }
                _ => {}
            }
        }
        for result in read(bytes) {
            match result {
                Ok(trajectory) => prop_assert_eq!(trajectory.validate(), Ok(())),
                Err(error) => prop_assert!(error.to_string().starts_with("runs.jsonl:")),
            }
        }
    }
}
