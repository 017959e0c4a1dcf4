//! Sums over whole trajectories, and losses of them: the two passes.
//!
//! A loss of whole trajectories, as GSPO's and DPO's, is a function of sums over their tokens that
//! are linear in the log-probabilities. Once the sums are known, the gradient of each
//! log-probability is a number for its trajectory, wherever its pack is: a first pass without
//! gradients collects the sums, and in the second the loss of a pack is linear.

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::{Tensor, TensorData};
use tree_pack::{OccurrenceBatch, StepTrajectory};

use super::ObjectiveInputError;
use crate::{GatherPlan, TreeTrainOps};

/// Sums of `C` columns over the trained predictions of each trajectory of an optimizer step, on
/// the device, without gradient.
#[derive(Clone, Debug)]
pub(super) struct TrajectorySums<const C: usize> {
    /// Trained predictions of each trajectory.
    trained: Vec<u32>,
    /// Those that have been added.
    collected: Vec<u32>,
    /// `[R, C]`
    sums: Option<Tensor<2>>,
}

impl<const C: usize> TrajectorySums<C> {
    pub(super) fn new(trajectories: &[StepTrajectory]) -> Self {
        Self {
            trained: trajectories
                .iter()
                .map(|entry| entry.trained_tokens)
                .collect(),
            collected: vec![0; trajectories.len()],
            sums: None,
        }
    }

    /// Number of trajectories, `R`.
    pub(super) fn len(&self) -> usize {
        self.trained.len()
    }

    /// Adds the predictions of a pack: columns `[n]`, without gradient.
    pub(super) fn add(
        &mut self,
        columns: [Tensor<1>; C],
        occurrences: &OccurrenceBatch,
    ) -> Result<(), ObjectiveInputError> {
        if occurrences.is_empty() {
            return Ok(());
        }
        let plan = self.plan(&occurrences.host_trajectories)?;
        let mut collected = self.collected.clone();
        for &trajectory in occurrences.host_trajectories.iter() {
            collected[trajectory as usize] += 1;
        }
        // A pack that is collected twice, before its sums have spoiled anything.
        self.check(&collected, &occurrences.host_trajectories, |own, all| {
            own <= all
        })?;
        let values: Tensor<2> = Tensor::stack(columns.to_vec(), 1);
        let sums = sum_by(values, plan);
        self.collected = collected;
        self.sums = Some(match self.sums.take() {
            Some(earlier) => earlier + sums,
            None => sums,
        });
        Ok(())
    }

    /// Checks that all predictions of `trajectories` have been added.
    pub(super) fn check_complete(&self, trajectories: &[u32]) -> Result<(), ObjectiveInputError> {
        self.plan(trajectories)?;
        self.check(&self.collected, trajectories, |own, all| own == all)
    }

    fn check(
        &self,
        collected: &[u32],
        trajectories: &[u32],
        holds: fn(u32, u32) -> bool,
    ) -> Result<(), ObjectiveInputError> {
        let count = |trajectory: usize| (collected[trajectory], self.trained[trajectory]);
        let wrong = trajectories
            .iter()
            .map(|&trajectory| trajectory as usize)
            .find(|&trajectory| {
                let (own, all) = count(trajectory);
                !holds(own, all)
            });
        match wrong {
            None => Ok(()),
            Some(trajectory) => {
                let (collected, trained) = count(trajectory);
                Err(ObjectiveInputError::IncompleteTrajectory {
                    trajectory,
                    collected,
                    trained,
                })
            }
        }
    }

    fn plan(&self, trajectories: &[u32]) -> Result<Arc<GatherPlan>, ObjectiveInputError> {
        let plan = GatherPlan::new(trajectories.to_vec(), self.len());
        plan.map(Arc::new)
            .map_err(|error| ObjectiveInputError::ForeignTrajectory {
                trajectory: error.index,
                trajectories: error.rows,
            })
    }

    /// The sums of a column, `[R]`, if anything was added.
    pub(super) fn column(&self, index: usize) -> Option<Tensor<1>> {
        let sums = self.sums.clone()?;
        Some(sums.slice_dim(1, index..index + 1).squeeze_dim(1))
    }

    /// `[R]` one by the number of trained predictions, at most 1, like `like`.
    pub(super) fn inverse_lengths(&self, like: &Tensor<1>) -> Tensor<1> {
        let lengths = self
            .trained
            .iter()
            .map(|&trained| 1.0 / f64::from(trained.max(1)));
        let values = TensorData::new(lengths.collect::<Vec<f64>>(), [self.len()]);
        Tensor::from_data(values, (&like.device(), like.dtype()))
    }
}

/// Sums of the rows of `values [n, C]` that belong to each of `plan.rows()` groups, in a fixed
/// order: what the gradient of a gather is.
pub(super) fn sum_by(values: Tensor<2>, plan: Arc<GatherPlan>) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as TreeTrainOps>::gather_rows_backward(
        values.into_dispatch(),
        plan,
    ))
}

/// A loss of trajectories that has been reduced to numbers for each of them.
pub(super) struct TrajectoryCoefficients {
    /// `[R]` derivative of the loss by each log-probability of a trajectory.
    pub(super) gradients: Tensor<1>,
    /// `[R]` part of the loss that is reported at each of its predictions; all add up to the loss.
    pub(super) values: Tensor<1>,
}

impl TrajectoryCoefficients {
    /// The loss of a pack, for each occurrence: its value is the pack's share of the loss of the
    /// step, its gradient that of the whole.
    pub(super) fn loss(self, log_probs: Tensor<1>, occurrences: &OccurrenceBatch) -> Tensor<1> {
        let trajectories = occurrences.trajectories.clone().inner();
        let gather = |column: Tensor<1>| {
            let column = column.inner().select(0, trajectories.clone());
            column.cast(log_probs.dtype())
        };
        let (gradients, values) = (gather(self.gradients), gather(self.values));
        // The difference is 0: it brings the gradient and not a value.
        (log_probs.clone() - log_probs.inner()) * gradients + values
    }
}
