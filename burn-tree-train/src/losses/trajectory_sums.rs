//! Sums over trajectories, and the two-pass scheme of losses that depend on them.
//!
//! A trajectory loss, such as GSPO's and DPO's, is a function of sums over the tokens of
//! trajectories that are linear in the log-probabilities. Given the sums, the gradient of each
//! log-probability is a constant per trajectory. A first pass without gradients therefore collects
//! the sums, and in the second the loss of a pack is linear.

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::{Tensor, TensorData};
use tree_pack::{OccurrenceBatch, StepTrajectory};

use super::LossInputError;
use burn_tree_nn::{GatherPlan, TreeNnOps};

/// Sums of `C` columns over the trained predictions of each trajectory of an optimizer step, on
/// the device, without gradient.
#[derive(Clone, Debug)]
pub(super) struct TrajectorySums<const C: usize> {
    /// Trained predictions of each trajectory.
    trained: Vec<u32>,
    /// Predictions added so far.
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
    ) -> Result<(), LossInputError> {
        if occurrences.is_empty() {
            return Ok(());
        }
        let counts = count(&occurrences.host_trajectories);
        for &(trajectory, count) in &counts {
            // A pack collected twice is refused before it changes the sums.
            let trained = self.trained(trajectory)?;
            let collected = self.collected[trajectory as usize] + count;
            if collected > trained {
                return Err(incomplete(trajectory, collected, trained));
            }
        }
        for (trajectory, count) in counts {
            self.collected[trajectory as usize] += count;
        }
        let plan = GatherPlan::new(occurrences.host_trajectories.to_vec(), self.len());
        let plan = plan.expect("trajectories of the step");
        let values: Tensor<2> = Tensor::stack(columns.to_vec(), 1);
        let sums = sum_by(values, Arc::new(plan));
        self.sums = Some(match self.sums.take() {
            Some(earlier) => earlier + sums,
            None => sums,
        });
        Ok(())
    }

    /// Checks that all predictions of a trajectory have been added.
    pub(super) fn check_complete(&self, trajectory: u32) -> Result<(), LossInputError> {
        let trained = self.trained(trajectory)?;
        match self.collected[trajectory as usize] {
            collected if collected == trained => Ok(()),
            collected => Err(incomplete(trajectory, collected, trained)),
        }
    }

    fn trained(&self, trajectory: u32) -> Result<u32, LossInputError> {
        let trained = self.trained.get(trajectory as usize);
        trained.copied().ok_or(LossInputError::ForeignTrajectory {
            trajectory,
            trajectories: self.len(),
        })
    }

    /// The sums of a column, `[R]`. `None` before the first pack.
    pub(super) fn column(&self, index: usize) -> Option<Tensor<1>> {
        let sums = self.sums.clone()?;
        Some(sums.slice_dim(1, index..index + 1).squeeze_dim(1))
    }

    /// `[R]` reciprocals of the numbers of trained predictions, at most 1, with the dtype and
    /// device of `like`.
    pub(super) fn inverse_lengths(&self, like: &Tensor<1>) -> Tensor<1> {
        let lengths = self
            .trained
            .iter()
            .map(|&trained| 1.0 / f64::from(trained.max(1)));
        let values = TensorData::new(lengths.collect::<Vec<f64>>(), [self.len()]);
        Tensor::from_data(values, (&like.device(), like.dtype()))
    }
}

fn incomplete(trajectory: u32, collected: u32, trained: u32) -> LossInputError {
    LossInputError::IncompleteTrajectory {
        trajectory: trajectory as usize,
        collected,
        trained,
    }
}

/// The trajectories of a pack, ascending, with their numbers of occurrences.
pub(super) fn count(trajectories: &[u32]) -> Vec<(u32, u32)> {
    let mut sorted = trajectories.to_vec();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|a, b| a == b);
    runs.map(|run| (run[0], run.len() as u32)).collect()
}

/// Sums of the rows of `values [n, C]` that belong to each of `plan.rows()` groups, in a fixed
/// order: the gradient of a gather.
pub(super) fn sum_by(values: Tensor<2>, plan: Arc<GatherPlan>) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as TreeNnOps>::gather_rows_backward(
        values.into_dispatch(),
        plan,
    ))
}

/// A trajectory loss, reduced to constants per trajectory.
#[derive(Clone, Debug)]
pub(super) struct TrajectoryCoefficients {
    /// `[R]` derivative of the loss with respect to each log-probability of a trajectory.
    pub(super) gradients: Tensor<1>,
    /// `[R]` share of the loss reported at each prediction of a trajectory; they sum to the loss.
    pub(super) values: Tensor<1>,
}

impl TrajectoryCoefficients {
    /// The loss of a pack for each occurrence. Its value is the share of the pack in the loss of
    /// the step, its gradient is that of the whole loss.
    pub(super) fn loss(&self, log_probs: Tensor<1>, occurrences: &OccurrenceBatch) -> Tensor<1> {
        let trajectories = occurrences.trajectories.clone().inner();
        let gather = |column: &Tensor<1>| {
            let column = column.clone().inner().select(0, trajectories.clone());
            column.cast(log_probs.dtype())
        };
        let (gradients, values) = (gather(&self.gradients), gather(&self.values));
        // The difference is 0: it contributes the gradient but no value.
        (log_probs.clone() - log_probs.inner()) * gradients + values
    }
}
