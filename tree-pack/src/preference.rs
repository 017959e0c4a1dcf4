//! Preference pairs from rewards.

use std::collections::HashMap;

use crate::reward::{RewardError, finite_reward};
use crate::trajectory::Trajectory;

/// A preference between two trajectories, as indices in the data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PreferencePair {
    /// The preferred one.
    pub chosen: usize,
    /// The other one.
    pub rejected: usize,
}

/// The pairs of a task that [`preference_pairs`] returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PairRule {
    /// One pair: the first trajectory with the highest reward over the first one with the lowest.
    #[default]
    BestOverWorst,
    /// Every trajectory over every other one with a lower reward.
    All,
}

/// Errors of pairing trajectories.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PairError {
    /// A trajectory has no reward, or one that is not finite.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// A rollout has several trajectories, so that the reward belongs to no single one.
    #[error(
        "trajectory {index} (task {task_id:?}, rollout {rollout_id:?}) is one of {segments} \
         segments, expected rollouts of one"
    )]
    Segments {
        /// Index in the data set.
        index: usize,
        /// Its task.
        task_id: String,
        /// Its rollout.
        rollout_id: String,
        /// Number of segments of the rollout.
        segments: u32,
    },
}

/// Pairs of trajectories of the same task with different rewards, in order of the tasks' first
/// appearance. Trajectories without trained tokens are in no pair. A task whose rewards are all
/// equal has no pairs.
///
/// # Errors
/// [`PairError`] for a trajectory that has no reward or is not its whole rollout.
///
/// # Example
/// ```
/// use tree_pack::{PairRule, PreferencePair, Trajectory, preference_pairs};
///
/// let trajectories = [0.0, 1.0, 0.5].map(|reward| Trajectory {
///     reward: Some(reward),
///     ..Trajectory::new("task", "run", vec![1, 2], vec![false, true])
/// });
/// let pairs = preference_pairs(&trajectories, PairRule::BestOverWorst)?;
/// assert_eq!(pairs, [PreferencePair { chosen: 1, rejected: 0 }]);
/// assert_eq!(preference_pairs(&trajectories, PairRule::All)?.len(), 3);
/// # Ok::<(), tree_pack::PairError>(())
/// ```
pub fn preference_pairs(
    trajectories: &[Trajectory],
    rule: PairRule,
) -> Result<Vec<PreferencePair>, PairError> {
    let mut tasks: Vec<Vec<(usize, f32)>> = Vec::new();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        if trajectory.segments != 1 {
            return Err(PairError::Segments {
                index,
                task_id: trajectory.task_id.clone(),
                rollout_id: trajectory.rollout_id.clone(),
                segments: trajectory.segments,
            });
        }
        let reward = finite_reward(index, trajectory)?;
        if trajectory.trained_tokens() == 0 {
            continue;
        }
        let number = *numbers.entry(&trajectory.task_id).or_insert_with(|| {
            tasks.push(Vec::new());
            tasks.len() - 1
        });
        tasks[number].push((index, reward));
    }
    let mut pairs = Vec::new();
    for members in &tasks {
        match rule {
            PairRule::BestOverWorst => pairs.extend(best_over_worst(members)),
            PairRule::All => {
                for &(chosen, high) in members {
                    let lower = members.iter().filter(|(_, reward)| *reward < high);
                    pairs.extend(lower.map(|&(rejected, _)| PreferencePair { chosen, rejected }));
                }
            }
        }
    }
    Ok(pairs)
}

fn best_over_worst(members: &[(usize, f32)]) -> Option<PreferencePair> {
    // Of equal elements `max_by` returns the last, `min_by` the first.
    let best = members.iter().rev().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let worst = members.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    (worst.1 < best.1).then_some(PreferencePair {
        chosen: best.0,
        rejected: worst.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trajectory(task: &str, reward: Option<f32>) -> Trajectory {
        Trajectory {
            reward,
            ..Trajectory::new(task, "run", vec![1, 2], vec![false, true])
        }
    }

    fn pair(chosen: usize, rejected: usize) -> PreferencePair {
        PreferencePair { chosen, rejected }
    }

    #[test]
    fn pairs_are_made_within_a_task() {
        let rewards = [
            ("a", 1.0),
            ("b", 5.0),
            ("a", 0.0),
            ("a", 1.0),
            ("c", 2.0),
            ("c", 2.0),
        ];
        let mut trajectories: Vec<_> = rewards
            .iter()
            .map(|&(task, reward)| trajectory(task, Some(reward)))
            .collect();
        let pairs = |trajectories: &[Trajectory], rule| preference_pairs(trajectories, rule);
        let best = pairs(&trajectories, PairRule::BestOverWorst);
        assert_eq!(best.unwrap(), [pair(0, 2)]);
        let all = pairs(&trajectories, PairRule::All).unwrap();
        assert_eq!(all, [pair(0, 2), pair(3, 2)]);
        // A trajectory without trained tokens is in no pair.
        trajectories[0].loss_mask.fill(false);
        let best = pairs(&trajectories, PairRule::BestOverWorst);
        assert_eq!(best.unwrap(), [pair(3, 2)]);
    }

    #[test]
    fn what_cannot_be_paired_is_named() {
        let mut trajectories = [trajectory("a", Some(1.0)), trajectory("a", None)];
        let error = preference_pairs(&trajectories, PairRule::All).unwrap_err();
        let text = "trajectory 1 (task \"a\", rollout \"run\") has the reward None, expected a \
                    finite number";
        assert_eq!(error.to_string(), text);
        trajectories[0].segments = 2;
        let error = preference_pairs(&trajectories, PairRule::All).unwrap_err();
        assert!(matches!(
            error,
            PairError::Segments {
                index: 0,
                segments: 2,
                ..
            }
        ));
    }
}
