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
use burn_tree_nn::{GatherPlan, TreeNnOps};

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
        let counts = count(&occurrences.host_trajectories);
        for &(trajectory, count) in &counts {
            // A pack that is collected twice is refused before it has spoiled anything.
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
    pub(super) fn check_complete(&self, trajectory: u32) -> Result<(), ObjectiveInputError> {
        let trained = self.trained(trajectory)?;
        match self.collected[trajectory as usize] {
            collected if collected == trained => Ok(()),
            collected => Err(incomplete(trajectory, collected, trained)),
        }
    }

    fn trained(&self, trajectory: u32) -> Result<u32, ObjectiveInputError> {
        let trained = self.trained.get(trajectory as usize);
        trained
            .copied()
            .ok_or(ObjectiveInputError::ForeignTrajectory {
                trajectory,
                trajectories: self.len(),
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

fn incomplete(trajectory: u32, collected: u32, trained: u32) -> ObjectiveInputError {
    ObjectiveInputError::IncompleteTrajectory {
        trajectory: trajectory as usize,
        collected,
        trained,
    }
}

/// Each trajectory of a pack, ascending, with the number of its occurrences.
pub(super) fn count(trajectories: &[u32]) -> Vec<(u32, u32)> {
    let mut sorted = trajectories.to_vec();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|a, b| a == b);
    runs.map(|run| (run[0], run.len() as u32)).collect()
}

/// Sums of the rows of `values [n, C]` that belong to each of `plan.rows()` groups, in a fixed
/// order: what the gradient of a gather is.
pub(super) fn sum_by(values: Tensor<2>, plan: Arc<GatherPlan>) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as TreeNnOps>::gather_rows_backward(
        values.into_dispatch(),
        plan,
    ))
}

/// A loss of trajectories that has been reduced to numbers for each of them.
#[derive(Clone, Debug)]
pub(super) struct TrajectoryCoefficients {
    /// `[R]` derivative of the loss by each log-probability of a trajectory.
    pub(super) gradients: Tensor<1>,
    /// `[R]` part of the loss that is reported at each of its predictions; all add up to the loss.
    pub(super) values: Tensor<1>,
}

impl TrajectoryCoefficients {
    /// The loss of a pack, for each occurrence: its value is the pack's share of the loss of the
    /// step, its gradient that of the whole.
    pub(super) fn loss(&self, log_probs: Tensor<1>, occurrences: &OccurrenceBatch) -> Tensor<1> {
        let trajectories = occurrences.trajectories.clone().inner();
        let gather = |column: &Tensor<1>| {
            let column = column.clone().inner().select(0, trajectories.clone());
            column.cast(log_probs.dtype())
        };
        let (gradients, values) = (gather(&self.gradients), gather(&self.values));
        // The difference is 0: it brings the gradient and not a value.
        (log_probs.clone() - log_probs.inner()) * gradients + values
    }
}
