//! Advantages and other columns of rollouts for policy-gradient losses.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::{Result, bail};
use tree_pack::{AdvantageError, AdvantageEstimator, RewardStats, Trajectory, assign_advantages};

/// The source of the advantages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AdvantageSource {
    /// Advantages given in the data.
    Data,
    /// Computed from the rewards of the rollouts of each task.
    Rewards(AdvantageEstimator),
}

/// Parses `data` or the name of an [`AdvantageEstimator`].
impl FromStr for AdvantageSource {
    type Err = AdvantageError;

    fn from_str(text: &str) -> Result<Self, AdvantageError> {
        match text {
            "data" => Ok(Self::Data),
            _ => Ok(Self::Rewards(text.parse()?)),
        }
    }
}

impl std::fmt::Display for AdvantageSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Data => f.write_str("data"),
            Self::Rewards(estimator) => estimator.fmt(f),
        }
    }
}

/// The columns that a run reads from the data besides tokens, masks and rewards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Advantages.
    pub advantages: bool,
    /// Log-probabilities under the old policy.
    pub old_log_probs: bool,
    /// Log-probabilities of the reference policy.
    pub ref_log_probs: bool,
    /// Log-probabilities that the inference engine reported.
    pub sampling_log_probs: bool,
}

impl Columns {
    /// Drops all other columns. A step needs each column on all of its trajectories or on none, so
    /// a column that is not read may be incomplete.
    pub fn keep(self, trajectories: &mut [Trajectory]) {
        for trajectory in trajectories {
            if !self.advantages {
                trajectory.advantage = None;
            }
            for (kept, column) in [
                (self.old_log_probs, &mut trajectory.old_log_probs),
                (self.ref_log_probs, &mut trajectory.ref_log_probs),
                (self.sampling_log_probs, &mut trajectory.sampling_log_probs),
            ] {
                if !kept {
                    *column = None;
                }
            }
        }
    }
}

/// Removes tasks whose rollouts all have the same reward, and returns their number.
pub fn drop_uniform_tasks(trajectories: &mut Vec<Trajectory>) -> usize {
    let mut rewards = BTreeMap::<String, Vec<Option<u32>>>::new();
    for trajectory in trajectories.iter() {
        let reward = trajectory.reward.map(f32::to_bits);
        let of_task = rewards.entry(trajectory.task_id.clone()).or_default();
        of_task.push(reward);
    }
    rewards.retain(|_, rewards| rewards.iter().all(|reward| *reward == rewards[0]));
    trajectories.retain(|trajectory| !rewards.contains_key(&trajectory.task_id));
    rewards.len()
}

/// Sets the advantages of all trajectories. Returns statistics of the rewards if advantages are
/// computed from them.
///
/// # Errors
/// The first trajectory without a reward, or without an advantage if they are read from the data.
pub fn set_advantages(
    trajectories: &mut [Trajectory],
    source: AdvantageSource,
) -> Result<Option<RewardStats>> {
    match source {
        AdvantageSource::Rewards(estimator) => {
            Ok(Some(assign_advantages(trajectories, estimator)?))
        }
        AdvantageSource::Data => match trajectories.iter().find(|t| t.advantage.is_none()) {
            None => Ok(None),
            Some(trajectory) => bail!(
                "task {:?}, rollout {:?} has no advantage, which --advantages data needs",
                trajectory.task_id,
                trajectory.rollout_id
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollouts(rewards: &[(&str, f32)]) -> Vec<Trajectory> {
        let rollout = |(index, &(task, reward)): (usize, &(&str, f32))| Trajectory {
            reward: Some(reward),
            ..Trajectory::new(task, index.to_string(), vec![1, 2], vec![false, true])
        };
        rewards.iter().enumerate().map(rollout).collect()
    }

    #[test]
    fn tasks_that_teach_nothing_are_dropped() {
        let mut all = rollouts(&[("a", 1.0), ("b", 0.0), ("a", 1.0), ("b", 1.0)]);
        assert_eq!(drop_uniform_tasks(&mut all), 1);
        assert!(all.iter().all(|trajectory| trajectory.task_id == "b"));
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn advantages_are_made_or_expected() {
        let mut all = rollouts(&[("a", 1.0), ("a", 0.0)]);
        let error = set_advantages(&mut all, AdvantageSource::Data).unwrap_err();
        assert!(error.to_string().contains("--advantages data"), "{error}");
        let source = "leave-one-out".parse().unwrap();
        let stats = set_advantages(&mut all, source).unwrap().unwrap();
        assert_eq!(stats.rollouts, 2);
        assert_eq!(all[0].advantage_of(1), Some(1.0));
        assert_eq!(
            set_advantages(&mut all, AdvantageSource::Data).unwrap(),
            None
        );
    }
}
