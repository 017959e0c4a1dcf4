//! What a step is made of: its forests, its sums and its inputs.

use std::borrow::Borrow;

use rayon::prelude::*;

use super::PackError;
use crate::counting_sort::counting_sort;
use crate::forest::{MAX_ROWS, NOBODY, PrefixForest};
use crate::objective::{LossForm, StepTotals};
use crate::occurrence::{INPUT_NAMES, Inputs, StepForest};
use crate::trajectory::Trajectory;

/// Counts the step, and checks that the forests belong to the trajectories.
pub(super) fn enter_step<'a, F: Borrow<PrefixForest> + Sync>(
    trajectories: &[Trajectory],
    forests: &'a [F],
) -> Result<(Vec<StepForest<'a>>, StepTotals), PackError> {
    let entered: Vec<_> = forests
        .par_iter()
        .map(|forest| enter_forest(trajectories, forest.borrow()))
        .collect();
    let mut entered = entered.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut totals = StepTotals::default();
    for entry in &mut entered {
        let forest = entry.forest;
        entry.first_trajectory = totals.trajectories as u32;
        totals.trajectories += forest.trajectories().len() as u64;
        totals.rows += forest.tokens().len() as u64;
        totals.unique_tokens += forest.merged().tokens().len() as u64;
        totals.unique_trained_tokens += entry
            .first_trained
            .iter()
            .filter(|&&first| first != NOBODY)
            .count() as u64;
        for (&index, &trained) in forest.trajectories().iter().zip(&entry.trained) {
            let trajectory = &trajectories[index as usize];
            totals.tokens += trajectory.len() as u64;
            totals.trained_tokens += u64::from(trained);
            totals.weighted_trained_tokens += trajectory.weight * f64::from(trained);
        }
        if totals.trajectories > MAX_ROWS as u64 {
            let count = totals.trajectories as usize;
            return Err(PackError::TooLarge {
                what: "trajectories",
                count,
            });
        }
    }
    Ok((entered, totals))
}

fn enter_forest<'a>(
    trajectories: &[Trajectory],
    forest: &'a PrefixForest,
) -> Result<StepForest<'a>, PackError> {
    for (number, &index) in forest.trajectories().iter().enumerate() {
        let end = forest.nodes()[forest.end_node(number) as usize];
        let length = end.position as usize + end.token_count();
        let belongs = trajectories.get(index as usize).is_some_and(|trajectory| {
            trajectory.len() == length
                && trajectory.task_id == forest.task_id()
                && trajectory.validate().is_ok()
        });
        if !belongs {
            let task_id = forest.task_id().to_owned();
            return Err(PackError::ForeignForest {
                task_id,
                index: index as usize,
            });
        }
    }
    let count = forest.trajectories().len();
    let trees = forest.trees().len();
    let (member_offsets, members) = counting_sort(count, trees, 0..count as u32, |number| {
        forest.tree_of(number as usize)
    });
    let trained = |&index: &u32| trajectories[index as usize].trained_tokens() as u32;
    Ok(StepForest {
        forest,
        first_trajectory: 0,
        trained: forest.trajectories().iter().map(trained).collect(),
        first_trained: forest.merged().first_trained(trajectories),
        trajectories_by_node: forest.trajectories_by_node(),
        members,
        member_offsets,
    })
}

/// Which inputs the occurrences carry: those that all trajectories have that train anything.
pub(super) fn step_inputs(
    trajectories: &[Trajectory],
    forests: &[StepForest],
    loss: LossForm,
) -> Result<Inputs, PackError> {
    if loss == LossForm::LogLikelihood {
        return Ok(Inputs::default());
    }
    let has = |trajectory: &Trajectory| {
        [
            trajectory.advantage.is_some(),
            trajectory.old_log_probs.is_some(),
            trajectory.ref_log_probs.is_some(),
            trajectory.sampling_log_probs.is_some(),
        ]
    };
    let trained = || {
        forests.iter().flat_map(|forest| {
            let indices = forest.forest.trajectories().iter().zip(&forest.trained);
            indices
                .filter(|(_, trained)| **trained > 0)
                .map(|(&index, _)| index as usize)
        })
    };
    let missing = |index: usize, input, why| {
        let Trajectory {
            task_id,
            rollout_id,
            ..
        } = &trajectories[index];
        let (task_id, rollout_id) = (task_id.clone(), rollout_id.clone());
        PackError::MissingInput {
            index,
            task_id,
            rollout_id,
            input,
            why,
        }
    };
    let mut carried = [false; INPUT_NAMES.len()];
    for (number, carried) in carried.iter_mut().enumerate() {
        let input = INPUT_NAMES[number];
        if loss == LossForm::AdvantageWeighted {
            let without = trained().find(|&index| !has(&trajectories[index])[0]);
            if let Some(index) = without {
                return Err(missing(
                    index,
                    INPUT_NAMES[0],
                    "the loss AdvantageWeighted needs",
                ));
            }
            continue;
        }
        *carried = trained().any(|index| has(&trajectories[index])[number]);
        if let (true, Some(index)) = (
            *carried,
            trained().find(|&index| !has(&trajectories[index])[number]),
        ) {
            return Err(missing(index, input, "other trajectories of the step have"));
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
