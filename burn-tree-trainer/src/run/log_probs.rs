//! Log-probabilities of recorded tokens, computed with a model on the packs of a plan without
//! gradients and stored in its data.

use burn::backend::ExecutionError;
use burn::module::Module;
use burn::tensor::Tensor;
use burn_tree_train::{StepError, TreeModel, check_device};
use serde::Serialize;
use tree_pack::{PackedStep, Trajectory};

use crate::optim::optimizer_step::{self, Trainer};
use crate::plan::StepPlan;
use crate::run::variant::VariantError;

/// Which log-probabilities are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogProbs {
    /// Those under the old policy.
    Old,
    /// Those under the reference policy.
    Reference,
}

/// Computes log-probabilities of all trained tokens of some tasks with the trainer's model, in the
/// dtypes of training, and stores them in the data of the plan. `steps` are the tasks of each step:
/// the packs are those of the steps, so the following steps compute exactly the same values.
///
/// # Errors
/// [`VariantError`] if the tasks cannot be packed, the packs are inconsistent, or the device fails.
pub fn compute<M: Module + TreeModel>(
    which: LogProbs,
    plan: &mut StepPlan,
    steps: &[Vec<usize>],
    trainer: &Trainer<M>,
) -> Result<(), VariantError> {
    let worker = trainer.precision.shadow(&trainer.model);
    for tasks in steps {
        let step = plan.packs_of_every_token(tasks)?;
        let log_probs =
            optimizer_step::log_probs(&worker, &step, &trainer.options, &trainer.device)?;
        check_device(&trainer.device).map_err(StepError::Device)?;
        set(which, plan, &step, log_probs).map_err(StepError::Device)?;
    }
    Ok(())
}

/// The source of log-probabilities of recorded tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogProbSource {
    /// The data if they have them, else the model.
    #[default]
    Auto,
    /// The data.
    Data,
    /// The model.
    Model,
}

impl LogProbSource {
    /// Whether the model computes them, given the data.
    ///
    /// # Errors
    /// The first trajectory without log-probabilities, if they are required or other trajectories
    /// have them.
    pub fn is_model(self, which: LogProbs, data: &[Trajectory]) -> Result<bool, MissingLogProbs> {
        let has = |trajectory: &Trajectory| match which {
            LogProbs::Old => trajectory.old_log_probs.is_some(),
            LogProbs::Reference => trajectory.ref_log_probs.is_some(),
        };
        let without = data.iter().find(|trajectory| !has(trajectory));
        match (self, without) {
            (Self::Model, _) => Ok(true),
            (_, None) => Ok(false),
            (Self::Auto, Some(_)) if !data.iter().any(has) => Ok(true),
            (_, Some(trajectory)) => Err(MissingLogProbs {
                field: which.field(),
                task_id: trajectory.task_id.clone(),
                rollout_id: trajectory.rollout_id.clone(),
            }),
        }
    }
}

/// A trajectory without log-probabilities.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "task {task_id:?}, rollout {rollout_id:?} has no {field}; give them for all trajectories, or \
     have the model compute them"
)]
pub struct MissingLogProbs {
    /// Name of the column.
    pub field: &'static str,
    /// The task.
    pub task_id: String,
    /// The rollout.
    pub rollout_id: String,
}

impl LogProbs {
    /// The name of the column in the data.
    pub fn field(self) -> &'static str {
        match self {
            Self::Old => "old_logps",
            Self::Reference => "ref_logps",
        }
    }
}

/// Assigns the log-probabilities of the occurrences of every pack to the trajectories.
fn set(
    which: LogProbs,
    plan: &mut StepPlan,
    step: &PackedStep,
    log_probs: Vec<Tensor<1>>,
) -> Result<(), ExecutionError> {
    let trajectories = plan.trajectories_mut();
    let mut columns: Vec<Vec<f32>> = step
        .trajectories
        .iter()
        .map(|entry| vec![0.0; trajectories[entry.data_index as usize].len() - 1])
        .collect();
    for (pack, log_probs) in step.packs.iter().zip(log_probs) {
        let occurrences = &pack.occurrences;
        let places = occurrences
            .trajectories
            .iter()
            .zip(&occurrences.token_indices);
        let log_probs = log_probs.try_into_data()?;
        for ((&trajectory, &token), log_prob) in places.zip(log_probs.iter::<f32>()) {
            // Entry t belongs to token t + 1.
            columns[trajectory as usize][token as usize - 1] = log_prob;
        }
    }
    for (entry, column) in step.trajectories.iter().zip(columns) {
        let trajectory = &mut trajectories[entry.data_index as usize];
        match which {
            LogProbs::Old => trajectory.old_log_probs = Some(column),
            LogProbs::Reference => trajectory.ref_log_probs = Some(column),
        }
    }
    Ok(())
}
