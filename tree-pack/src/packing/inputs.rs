//! Which inputs of the loss the occurrences of a step carry.

use super::counted::CountedStep;
use super::error::PackError;
use crate::objective::LossForm;
use crate::occurrences::{INPUT_NAMES, Inputs};
use crate::trajectory::Trajectory;

/// The inputs that occurrences carry: those that every trajectory with trained tokens has.
///
/// # Errors
/// [`PackError::MissingInput`] if only some of these trajectories have an input, or if the loss
/// requires one that a trajectory lacks.
pub fn step_inputs(step: &CountedStep, loss: LossForm) -> Result<Inputs, PackError> {
    match loss {
        LossForm::LogLikelihood => Ok(Inputs::default()),
        // The weights contain the advantages; no column of them is kept.
        LossForm::AdvantageWeighted => match first_without(step, 0) {
            Some(index) => Err(missing(
                step,
                index,
                0,
                "the loss AdvantageWeighted requires",
            )),
            None => Ok(Inputs::default()),
        },
        LossForm::PerToken | LossForm::PerTrajectory => common_inputs(step),
    }
}

fn common_inputs(step: &CountedStep) -> Result<Inputs, PackError> {
    let mut carried = [false; INPUT_NAMES.len()];
    for (input, carried) in carried.iter_mut().enumerate() {
        let mut trained = step.trained_trajectories();
        *carried = trained.any(|index| given(&step.trajectories[index])[input]);
        if let (true, Some(index)) = (*carried, first_without(step, input)) {
            let why = "other trajectories of the step have";
            return Err(missing(step, index, input, why));
        }
    }
    let [advantage, old_log_prob, ref_log_prob, sampling_log_prob] = carried;
    Ok(Inputs {
        advantage,
        old_log_prob,
        ref_log_prob,
        sampling_log_prob,
    })
}

/// Which inputs a trajectory has, in the order of [`INPUT_NAMES`].
fn given(trajectory: &Trajectory) -> [bool; INPUT_NAMES.len()] {
    [
        trajectory.advantage.is_some(),
        trajectory.old_log_probs.is_some(),
        trajectory.ref_log_probs.is_some(),
        trajectory.sampling_log_probs.is_some(),
    ]
}

/// The first trajectory with trained tokens that lacks an input, as an index in the data set.
fn first_without(step: &CountedStep, input: usize) -> Option<usize> {
    let mut trained = step.trained_trajectories();
    trained.find(|&index| !given(&step.trajectories[index])[input])
}

fn missing(step: &CountedStep, index: usize, input: usize, why: &'static str) -> PackError {
    let trajectory = &step.trajectories[index];
    PackError::MissingInput {
        index,
        task_id: trajectory.task_id.clone(),
        rollout_id: trajectory.rollout_id.clone(),
        input: INPUT_NAMES[input],
        why,
    }
}
