//! Whether the occurrences of each `(row, target)` can be merged.

use rayon::prelude::*;

use super::counted::{CountedForest, CountedStep};
use super::error::{OccurrenceName, PackError};
use crate::objective::LossForm;
use crate::occurrences::{INPUT_NAMES, Inputs};
use crate::trajectory::Trajectory;

/// The first occurrence that cannot be merged with an earlier one, as an error.
pub fn find_unmergeable(step: &CountedStep, loss: LossForm, inputs: Inputs) -> Option<PackError> {
    step.forests.par_iter().find_map_first(|counted| {
        let &CountedForest {
            forest,
            ref first_trained,
            ..
        } = counted;
        if forest.is_flat() {
            // Every prediction has its own row, so there is nothing to merge.
            return None;
        }
        let data_index = |number: u32| forest.trajectories()[number as usize] as usize;
        for number in 0..forest.trajectories().len() as u32 {
            let trajectory = &step.trajectories[data_index(number)];
            let mut found = None;
            forest.for_each_trained(number as usize, &trajectory.loss_mask, |row, index| {
                let first = first_trained[row];
                if found.is_some() || first == number {
                    return;
                }
                let other = &step.trajectories[data_index(first)];
                found = difference(loss, inputs, [other, trajectory], index)
                    .map(|text| (first, index, text));
            });
            if let Some((first, token_index, difference)) = found {
                let name = |number| {
                    let trajectory = &step.trajectories[data_index(number)];
                    Box::new(OccurrenceName {
                        data_index: data_index(number),
                        rollout_id: trajectory.rollout_id.clone(),
                        segment: trajectory.segment,
                        token_index,
                    })
                };
                return Some(PackError::NotMergeable {
                    task_id: forest.task_id().to_owned(),
                    first: name(first),
                    second: name(number),
                    difference,
                });
            }
        }
        None
    })
}

/// How the occurrences of one target in two trajectories differ, as far as the loss depends on it.
fn difference(
    loss: LossForm,
    inputs: Inputs,
    trajectories: [&Trajectory; 2],
    index: usize,
) -> Option<String> {
    if loss == LossForm::PerTrajectory {
        return Some("the loss depends on whole trajectories".to_owned());
    }
    let [first, second] = trajectories.map(|trajectory| inputs.of(trajectory, index));
    let differing = (0..INPUT_NAMES.len()).find(|&input| first[input] != second[input])?;
    let [first, second] =
        [first, second].map(|values| values[differing].map_or("none".into(), |v| v.to_string()));
    Some(format!(
        "{} is {first} and {second}",
        INPUT_NAMES[differing]
    ))
}
