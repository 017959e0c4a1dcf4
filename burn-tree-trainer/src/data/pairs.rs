//! Preference pairs from a file or from rewards.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;
use tree_pack::{
    JsonLines, PairError, PairRule, PreferencePair, ReadError, Trajectory, preference_pairs,
};

/// Errors of preference pairs.
#[derive(Debug, Error)]
pub enum PairsError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The rewards do not define pairs.
    #[error(transparent)]
    Rewards(#[from] PairError),
    /// A line is not a valid pair.
    #[error(
        "{}:{line}: expected {{\"task_id\", \"chosen\", \"rejected\"}}: {source}",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// The cause.
        source: serde_json::Error,
    },
    /// A line names a rollout without exactly one trajectory in the data.
    #[error(
        "{}:{line}: task {task_id:?} has {found} trajectories of rollout {rollout_id:?}, expected \
         one",
        path.display()
    )]
    Rollout {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// The task.
        task_id: String,
        /// The rollout.
        rollout_id: String,
        /// Number of its trajectories.
        found: usize,
    },
}

/// A line of a file of pairs. Other fields are ignored.
#[derive(Deserialize)]
struct Line {
    task_id: String,
    chosen: String,
    rejected: String,
}

/// Reads JSON lines `{"task_id": .., "chosen": rollout id, "rejected": rollout id}`. Lines of tasks
/// that are not in the data are ignored, since the data may be a selection.
///
/// # Errors
/// [`PairsError`], with the line number.
pub fn read(path: &Path, trajectories: &[Trajectory]) -> Result<Vec<PreferencePair>, PairsError> {
    let mut rollouts: HashMap<&str, HashMap<&str, Vec<usize>>> = HashMap::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        let of_task = rollouts.entry(&trajectory.task_id).or_default();
        of_task
            .entry(&trajectory.rollout_id)
            .or_default()
            .push(index);
    }
    let mut lines = JsonLines::open(path)?;
    let mut pairs = Vec::new();
    while let Some((number, text)) = lines.next_line()? {
        let line = usize::try_from(number).unwrap_or(usize::MAX);
        let entry: Line = serde_json::from_slice(text).map_err(|source| PairsError::Line {
            path: path.into(),
            line,
            source,
        })?;
        let Some(of_task) = rollouts.get(entry.task_id.as_str()) else {
            continue;
        };
        let index = |rollout_id: &str| {
            let found = of_task.get(rollout_id).map_or(&[][..], Vec::as_slice);
            match found {
                [index] => Ok(*index),
                _ => Err(PairsError::Rollout {
                    path: path.into(),
                    line,
                    task_id: entry.task_id.clone(),
                    rollout_id: rollout_id.into(),
                    found: found.len(),
                }),
            }
        };
        pairs.push(PreferencePair {
            chosen: index(&entry.chosen)?,
            rejected: index(&entry.rejected)?,
        });
    }
    Ok(pairs)
}

/// Pairs of rollouts of a task whose rewards differ by at least `margin`.
///
/// # Errors
/// [`PairsError::Rewards`] if a trajectory has no reward or is not a complete rollout.
pub fn from_rewards(
    trajectories: &[Trajectory],
    rule: PairRule,
    margin: f32,
) -> Result<Vec<PreferencePair>, PairsError> {
    let reward = |index: usize| trajectories[index].reward.unwrap_or_default();
    let mut pairs = preference_pairs(trajectories, rule)?;
    pairs.retain(|pair| reward(pair.chosen) - reward(pair.rejected) >= margin);
    Ok(pairs)
}

/// Removes trajectories that are in no pair, and renumbers the pairs. Returns the number of removed
/// trajectories.
pub fn keep_paired(trajectories: &mut Vec<Trajectory>, pairs: &mut [PreferencePair]) -> usize {
    let paired: HashSet<usize> = pairs
        .iter()
        .flat_map(|pair| [pair.chosen, pair.rejected])
        .collect();
    let mut kept = Vec::with_capacity(paired.len());
    let mut index = 0;
    trajectories.retain(|_| {
        let keep = paired.contains(&index);
        if keep {
            kept.push(index);
        }
        index += 1;
        keep
    });
    let new = |old: usize| kept.binary_search(&old).expect("the trajectory is paired");
    for pair in pairs {
        *pair = PreferencePair {
            chosen: new(pair.chosen),
            rejected: new(pair.rejected),
        };
    }
    index - kept.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trajectories() -> Vec<Trajectory> {
        [
            ("a", "0", 0.0),
            ("a", "1", 0.4),
            ("b", "0", 0.0),
            ("a", "2", 1.0),
        ]
        .map(|(task, rollout, reward)| Trajectory {
            reward: Some(reward),
            ..Trajectory::new(task, rollout, vec![1, 2], vec![false, true])
        })
        .into()
    }

    fn pair(chosen: usize, rejected: usize) -> PreferencePair {
        PreferencePair { chosen, rejected }
    }

    fn read_text(text: &str) -> Result<Vec<PreferencePair>, PairsError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path(), &trajectories())
    }

    #[test]
    fn rewards_that_hardly_differ_make_no_pair() {
        let all = |margin| from_rewards(&trajectories(), PairRule::All, margin).unwrap();
        assert_eq!(all(0.0).len(), 3);
        assert_eq!(all(0.5), [pair(3, 0), pair(3, 1)]);
    }

    #[test]
    fn unpaired_trajectories_are_left_out() {
        let mut all = trajectories();
        let mut pairs = [pair(3, 1)];
        assert_eq!(keep_paired(&mut all, &mut pairs), 2);
        assert_eq!(pairs, [pair(1, 0)]);
        assert_eq!(all[1].rollout_id, "2");
    }

    #[test]
    fn pairs_are_read_by_rollout() {
        let text = r#"{"task_id": "a", "chosen": "2", "rejected": "0"}
            {"task_id": "not selected", "chosen": "2", "rejected": "0"}"#;
        assert_eq!(read_text(text).unwrap(), [pair(3, 0)]);
        let error = read_text(r#"{"task_id": "a", "chosen": "9", "rejected": "0"}"#);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(":1: ") && error.contains("\"9\""), "{error}");
        let error = read_text("{}").unwrap_err().to_string();
        assert!(error.contains("missing field"), "{error}");
    }
}
