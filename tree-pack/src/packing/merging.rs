//! Whether the occurrences of a `(row, target)` may become one.

use rayon::prelude::*;

use super::{OccurrenceName, PackError};
use crate::objective::{LossForm, Objective};
use crate::occurrence::{INPUT_NAMES, StepForest, StepRules};
use crate::trajectory::Trajectory;

/// The first occurrence that cannot be merged with an earlier one, as an error.
pub(super) fn find_unmergeable(rules: &StepRules, forests: &[StepForest]) -> Option<PackError> {
    if !rules.loss.carries_inputs() || rules.objective == Objective::Unique {
        return None;
    }
    forests.par_iter().find_map_first(|step_forest| {
        let StepForest {
            forest,
            first_trained,
            ..
        } = step_forest;
        if forest.is_flat() {
            // Every prediction has a row of its own. A loss of trajectories merges nothing.
            return None;
        }
        let data_index = |number: u32| forest.trajectories()[number as usize] as usize;
        for number in 0..forest.trajectories().len() as u32 {
            let trajectory = &rules.trajectories[data_index(number)];
            let mut found = None;
            forest.for_each_trained(number as usize, &trajectory.loss_mask, |row, index| {
                let first = first_trained[row];
                if found.is_some() || first == number {
                    return;
                }
                let other = &rules.trajectories[data_index(first)];
                found =
                    difference(rules, other, trajectory, index).map(|text| (first, index, text));
            });
            if let Some((first, token_index, difference)) = found {
                let name = |number| {
                    let Trajectory {
                        rollout_id,
                        segment,
                        ..
                    } = &rules.trajectories[data_index(number)];
                    Box::new(OccurrenceName {
                        data_index: data_index(number),
                        rollout_id: rollout_id.clone(),
                        segment: *segment,
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

/// In what two occurrences of one target differ as far as the loss can tell.
fn difference(
    rules: &StepRules,
    first: &Trajectory,
    second: &Trajectory,
    index: usize,
) -> Option<String> {
    if rules.loss == LossForm::PerTrajectory {
        return Some("the loss depends on whole trajectories".to_owned());
    }
    let [first, second] = [first, second].map(|trajectory| rules.inputs.of(trajectory, index));
    let differing = (0..INPUT_NAMES.len()).find(|&input| first[input] != second[input])?;
    let [first, second] =
        [first, second].map(|values| values[differing].map_or("none".into(), |v| v.to_string()));
    Some(format!(
        "{} is {first} and {second}",
        INPUT_NAMES[differing]
    ))
}
