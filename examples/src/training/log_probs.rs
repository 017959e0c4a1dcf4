//! Log-probabilities of recorded tokens under a model, computed on the packs of a plan without
//! gradients and kept with the data.

use burn::module::Module;
use burn::tensor::Tensor;
use burn_tree_train::TreeModel;
use tree_pack::PackedStep;

use super::optimizer_step::{self, Trainer};
use super::pass::PassError;
use super::plan::StepPlan;

/// Whose log-probabilities they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogProbs {
    /// Of the policy before a batch of updates.
    Old,
    /// Of the reference policy.
    Reference,
}

/// Computes log-probabilities of all trained tokens of some tasks under the trainer's model, in the
/// dtypes of a step, and sets them in the data of the plan. `steps` are the tasks of each step: the
/// packs are those of the steps, so that a step that follows computes the very same numbers.
///
/// # Errors
/// [`PassError`] if the tasks cannot be packed, or the device fails.
pub fn compute<M: Module + TreeModel>(
    which: LogProbs,
    plan: &mut StepPlan,
    steps: &[Vec<usize>],
    trainer: &Trainer<M>,
) -> Result<(), PassError> {
    let worker = trainer.precision.shadow(&trainer.model);
    for tasks in steps {
        let step = plan.packs_of_every_token(tasks)?;
        let log_probs =
            optimizer_step::log_probs(&worker, &step.packs, &trainer.options, &trainer.device)?;
        set(which, plan, &step, log_probs);
    }
    Ok(())
}

/// Distributes the log-probabilities of the occurrences of every pack to the trajectories.
fn set(which: LogProbs, plan: &mut StepPlan, step: &PackedStep, log_probs: Vec<Tensor<1>>) {
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
        let log_probs = log_probs.into_data();
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
}
