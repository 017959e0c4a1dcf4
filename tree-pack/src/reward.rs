//! Rewards of trajectories that must be given and finite.

use crate::trajectory::Trajectory;

/// A trajectory has no reward, or one that is not finite.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "trajectory {index} (task {task_id:?}, rollout {rollout_id:?}) has the reward {reward:?}, \
     expected a finite number"
)]
pub struct RewardError {
    /// Index in the data set.
    pub index: usize,
    /// Its task.
    pub task_id: String,
    /// Its rollout.
    pub rollout_id: String,
    /// Its reward.
    pub reward: Option<f32>,
}

/// The reward of the trajectory `index` of a data set.
pub(crate) fn finite_reward(index: usize, trajectory: &Trajectory) -> Result<f32, RewardError> {
    let reward = trajectory.reward.filter(|reward| reward.is_finite());
    reward.ok_or_else(|| RewardError {
        index,
        task_id: trajectory.task_id.clone(),
        rollout_id: trajectory.rollout_id.clone(),
        reward: trajectory.reward,
    })
}
