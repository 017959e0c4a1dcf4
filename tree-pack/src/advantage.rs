//! Advantages from rewards: each rollout is compared with the other rollouts of its task.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use crate::reward::{RewardError, finite_reward};
use crate::trajectory::{Advantage, Trajectory};

/// How advantages are computed from the rewards of a task's rollouts.
///
/// With every estimator, a group of equal rewards has advantages of exactly 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AdvantageEstimator {
    /// `(r - mean) / (s + epsilon)`, with the standard deviation `s` of a sample (divisor `n - 1`):
    /// GRPO, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300).
    Standardized {
        /// Added to the standard deviation; at least 0.
        epsilon: f64,
    },
    /// `r - mean`: Dr. GRPO, [arXiv:2503.20783](https://arxiv.org/abs/2503.20783).
    Centered,
    /// `r - mean of the other rollouts`: RLOO, [arXiv:2402.14740](https://arxiv.org/abs/2402.14740).
    LeaveOneOut,
}

impl Default for AdvantageEstimator {
    fn default() -> Self {
        Self::Standardized { epsilon: 1e-6 }
    }
}

/// Parses the names that programs use: `standardized` (with an epsilon of 1e-6), `centered`,
/// `leave-one-out`.
impl FromStr for AdvantageEstimator {
    type Err = AdvantageError;

    fn from_str(text: &str) -> Result<Self, AdvantageError> {
        match text {
            "standardized" => Ok(Self::default()),
            "centered" => Ok(Self::Centered),
            "leave-one-out" => Ok(Self::LeaveOneOut),
            _ => Err(AdvantageError::UnknownEstimator { text: text.into() }),
        }
    }
}

impl fmt::Display for AdvantageEstimator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standardized { .. } => "standardized",
            Self::Centered => "centered",
            Self::LeaveOneOut => "leave-one-out",
        })
    }
}

impl AdvantageEstimator {
    /// Advantages of one group of rewards, computed in f64; `None` for fewer than two rewards,
    /// which cannot be compared.
    pub fn of_group(self, rewards: &[f32]) -> Option<Vec<f32>> {
        let count = rewards.len() as f64;
        if rewards.len() < 2 {
            return None;
        }
        if rewards.iter().all(|reward| *reward == rewards[0]) {
            return Some(vec![0.0; rewards.len()]);
        }
        let rewards = rewards.iter().map(|&reward| f64::from(reward));
        let mean = rewards.clone().sum::<f64>() / count;
        let scale = match self {
            Self::Standardized { epsilon } => {
                let squares: f64 = rewards.clone().map(|reward| (reward - mean).powi(2)).sum();
                1.0 / ((squares / (count - 1.0)).sqrt() + epsilon)
            }
            Self::Centered => 1.0,
            // r - (sum - r) / (n - 1) = (r - mean) n / (n - 1)
            Self::LeaveOneOut => count / (count - 1.0),
        };
        let advantages = rewards.map(|reward| ((reward - mean) * scale) as f32);
        Some(advantages.collect())
    }
}

/// The rewards of the rollouts of a data set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RewardStats {
    /// Number of rollouts, not of their trajectories.
    pub rollouts: usize,
    /// Tasks.
    pub groups: usize,
    /// Tasks whose rollouts all have the same reward: their advantages are 0.
    pub uniform_groups: usize,
    /// Mean reward of the rollouts.
    pub mean: f64,
    /// Standard deviation of the rewards of all rollouts (divisor `n`).
    pub standard_deviation: f64,
    /// Smallest reward.
    pub min: f64,
    /// Largest reward.
    pub max: f64,
}

/// Errors of computing advantages.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AdvantageError {
    /// The text does not name an estimator.
    #[error("advantage estimator {text:?}: expected standardized, centered or leave-one-out")]
    UnknownEstimator {
        /// What was given.
        text: String,
    },
    /// The epsilon of [`AdvantageEstimator::Standardized`] is out of range.
    #[error("epsilon is {epsilon}, expected a finite number of at least 0")]
    Epsilon {
        /// What was given.
        epsilon: f64,
    },
    /// A trajectory has no reward, or one that is not finite.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// Trajectories of one rollout have different rewards.
    #[error(
        "trajectory {index} (task {task_id:?}, rollout {rollout_id:?}) has the reward {reward}, \
         an earlier one of the same rollout {earlier}"
    )]
    DifferentRewards {
        /// Index in the data set.
        index: usize,
        /// Its task.
        task_id: String,
        /// Its rollout.
        rollout_id: String,
        /// Its reward.
        reward: f32,
        /// The reward of the first trajectory of the rollout.
        earlier: f32,
    },
    /// A task has only one rollout.
    #[error("task {task_id:?} has one rollout ({rollout_id:?}), expected at least two to compare")]
    GroupOfOne {
        /// The task.
        task_id: String,
        /// Its rollout.
        rollout_id: String,
    },
}

/// Sets the advantage of every trajectory to that of its rollout, which is computed from the
/// rewards of the task's rollouts. The trajectories of a rollout (its segments) share its reward
/// and advantage; a rollout counts once in its group.
///
/// # Errors
/// [`AdvantageError`]; trajectories are unchanged then.
///
/// # Example
/// ```
/// use tree_pack::{AdvantageEstimator, Trajectory, assign_advantages};
///
/// let mut trajectories = [("a", 1.0), ("b", 0.0), ("c", 0.0)].map(|(rollout, reward)| {
///     let mut trajectory = Trajectory::new("task", rollout, vec![1, 2], vec![false, true]);
///     trajectory.reward = Some(reward);
///     trajectory
/// });
/// let stats = assign_advantages(&mut trajectories, AdvantageEstimator::LeaveOneOut)?;
/// assert_eq!(trajectories[0].advantage_of(1), Some(1.0));
/// assert_eq!(trajectories[1].advantage_of(1), Some(-0.5));
/// assert_eq!((stats.rollouts, stats.groups), (3, 1));
/// # Ok::<(), tree_pack::AdvantageError>(())
/// ```
pub fn assign_advantages(
    trajectories: &mut [Trajectory],
    estimator: AdvantageEstimator,
) -> Result<RewardStats, AdvantageError> {
    if let AdvantageEstimator::Standardized { epsilon } = estimator
        && !(epsilon.is_finite() && epsilon >= 0.0)
    {
        return Err(AdvantageError::Epsilon { epsilon });
    }
    let groups = groups(trajectories)?;
    let mut advantages = vec![0.0; trajectories.len()];
    let mut stats = RewardStats {
        groups: groups.len(),
        min: f64::INFINITY,
        max: f64::NEG_INFINITY,
        ..RewardStats::default()
    };
    let (mut sum, mut squares) = (0.0, 0.0);
    for group in &groups {
        let rewards: Vec<f32> = group.iter().map(|rollout| rollout.reward).collect();
        let of_group = estimator.of_group(&rewards);
        let of_group = of_group.ok_or_else(|| {
            let only = &trajectories[group[0].trajectories[0]];
            AdvantageError::GroupOfOne {
                task_id: only.task_id.clone(),
                rollout_id: only.rollout_id.clone(),
            }
        })?;
        stats.uniform_groups += usize::from(rewards.iter().all(|reward| *reward == rewards[0]));
        for (rollout, advantage) in group.iter().zip(of_group) {
            let reward = f64::from(rollout.reward);
            stats.rollouts += 1;
            stats.min = stats.min.min(reward);
            stats.max = stats.max.max(reward);
            sum += reward;
            squares += reward * reward;
            for &index in &rollout.trajectories {
                advantages[index] = advantage;
            }
        }
    }
    if stats.rollouts == 0 {
        return Ok(RewardStats::default());
    }
    stats.mean = sum / stats.rollouts as f64;
    let variance = squares / stats.rollouts as f64 - stats.mean * stats.mean;
    stats.standard_deviation = variance.max(0.0).sqrt();
    for (trajectory, advantage) in trajectories.iter_mut().zip(advantages) {
        trajectory.advantage = Some(Advantage::Trajectory(advantage));
    }
    Ok(stats)
}

/// A rollout and the indices of its trajectories.
struct Rollout {
    reward: f32,
    trajectories: Vec<usize>,
}

/// The rollouts of each task, in order of first appearance.
fn groups(trajectories: &[Trajectory]) -> Result<Vec<Vec<Rollout>>, AdvantageError> {
    let mut groups: Vec<Vec<Rollout>> = Vec::new();
    let mut tasks: HashMap<&str, (usize, HashMap<&str, usize>)> = HashMap::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        let reward = finite_reward(index, trajectory)?;
        let (group, rollouts) = tasks.entry(&trajectory.task_id).or_insert_with(|| {
            groups.push(Vec::new());
            (groups.len() - 1, HashMap::new())
        });
        let group = &mut groups[*group];
        let number = *rollouts.entry(&trajectory.rollout_id).or_insert_with(|| {
            group.push(Rollout {
                reward,
                trajectories: Vec::new(),
            });
            group.len() - 1
        });
        let rollout = &mut group[number];
        if rollout.reward != reward {
            return Err(AdvantageError::DifferentRewards {
                index,
                task_id: trajectory.task_id.clone(),
                rollout_id: trajectory.rollout_id.clone(),
                reward,
                earlier: rollout.reward,
            });
        }
        rollout.trajectories.push(index);
    }
    Ok(groups)
}
