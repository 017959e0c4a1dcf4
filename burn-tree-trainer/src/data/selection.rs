//! Selection of the trajectories for training and validation.

use std::collections::{BTreeMap, HashSet};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tree_pack::{Advantage, Trajectory};

use crate::data::{Data, DataError, DataOptions};

/// Which trajectories of a task are trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// All trajectories.
    #[default]
    All,
    /// The longest trajectory; the first one of equal length.
    Longest,
}

/// Treatment of trajectories longer than the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TooLong {
    /// Report an error.
    #[default]
    Error,
    /// Truncate them at the limit, and drop them if no trained token is left.
    Truncate,
    /// Drop them.
    Drop,
}

/// Applies the options to the trajectories of all files.
///
/// # Errors
/// [`DataError`] if the options and the trajectories are inconsistent.
pub fn select(mut trajectories: Vec<Trajectory>, options: &DataOptions) -> Result<Data, DataError> {
    let mut data = Data::default();
    keep_tasks(&mut trajectories, &options.tasks)?;
    if options.selection == Selection::Longest {
        keep_longest(&mut trajectories);
    }
    limit_length(&mut trajectories, options, &mut data)?;
    data.untrained_tasks = leave_out_untrained_tasks(&mut trajectories);
    let held_out = validation_tasks(&trajectories, options)?;
    let (validation, training): (Vec<_>, Vec<_>) = trajectories
        .into_iter()
        .partition(|trajectory| held_out.contains(&trajectory.task_id));
    (data.validation, data.training) = (validation.into(), training.into());
    if trained_tokens(&data.training) == 0 {
        return Err(DataError::Empty(
            "all loss masks are 0, or all trajectories were dropped",
        ));
    }
    if !held_out.is_empty() && trained_tokens(&data.validation) == 0 {
        return Err(DataError::Empty("the validation tasks have none"));
    }
    Ok(data)
}

fn keep_tasks(trajectories: &mut Vec<Trajectory>, tasks: &[String]) -> Result<(), DataError> {
    if tasks.is_empty() {
        return Ok(());
    }
    let present = task_ids(trajectories);
    if let Some(task_id) = tasks.iter().find(|task| !present.contains(task)) {
        return Err(DataError::NoSuchTask {
            task_id: task_id.clone(),
            count: present.len(),
            examples: present
                .iter()
                .take(5)
                .cloned()
                .collect::<Vec<_>>()
                .join(", "),
        });
    }
    trajectories.retain(|trajectory| tasks.contains(&trajectory.task_id));
    Ok(())
}

fn keep_longest(trajectories: &mut Vec<Trajectory>) {
    let mut longest = BTreeMap::<String, usize>::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        let best = longest.entry(trajectory.task_id.clone()).or_insert(index);
        if trajectory.len() > trajectories[*best].len() {
            *best = index;
        }
    }
    let mut index = 0;
    trajectories.retain(|trajectory| {
        index += 1;
        longest[&trajectory.task_id] == index - 1
    });
}

fn limit_length(
    trajectories: &mut Vec<Trajectory>,
    options: &DataOptions,
    data: &mut Data,
) -> Result<(), DataError> {
    let Some(max_length) = options.max_length else {
        return Ok(());
    };
    let too_long = |trajectory: &Trajectory| trajectory.len() > max_length;
    match options.too_long {
        TooLong::Error => match trajectories.iter().find(|trajectory| too_long(trajectory)) {
            None => Ok(()),
            Some(trajectory) => Err(DataError::TooLong {
                task_id: trajectory.task_id.clone(),
                rollout_id: trajectory.rollout_id.clone(),
                length: trajectory.len(),
                max_length,
            }),
        },
        TooLong::Drop => {
            let before = trajectories.len();
            trajectories.retain(|trajectory| !too_long(trajectory));
            data.dropped = before - trajectories.len();
            Ok(())
        }
        TooLong::Truncate => {
            trajectories.retain_mut(|trajectory| {
                if !too_long(trajectory) {
                    return true;
                }
                truncate(trajectory, max_length);
                let kept = trajectory.trained_tokens() > 0;
                data.truncated += usize::from(kept);
                data.dropped += usize::from(!kept);
                kept
            });
            Ok(())
        }
    }
}

/// Drops tasks without a trained token, because a step of such tasks would have no loss. Returns
/// their number.
fn leave_out_untrained_tasks(trajectories: &mut Vec<Trajectory>) -> usize {
    let before = task_ids(trajectories).len();
    let trained: HashSet<String> = trajectories
        .iter()
        .filter(|trajectory| trajectory.trained_tokens() > 0)
        .map(|trajectory| trajectory.task_id.clone())
        .collect();
    trajectories.retain(|trajectory| trained.contains(&trajectory.task_id));
    before - trained.len()
}

/// Truncates a trajectory and all its columns to `length` tokens.
fn truncate(trajectory: &mut Trajectory, length: usize) {
    trajectory.tokens.truncate(length);
    trajectory.loss_mask.truncate(length);
    let rows = length.saturating_sub(1);
    if let Some(Advantage::Token(values)) = &mut trajectory.advantage {
        values.truncate(rows);
    }
    let columns = [
        &mut trajectory.old_log_probs,
        &mut trajectory.ref_log_probs,
        &mut trajectory.sampling_log_probs,
    ];
    for values in columns.into_iter().flatten() {
        values.truncate(rows);
    }
}

/// Selects the validation tasks by the seed.
fn validation_tasks(
    trajectories: &[Trajectory],
    options: &DataOptions,
) -> Result<Vec<String>, DataError> {
    let fraction = options.validation_fraction;
    let mut tasks = task_ids(trajectories);
    if fraction == 0.0 {
        return Ok(Vec::new());
    }
    // At least one task, if validation is requested.
    let held_out = ((fraction * tasks.len() as f64).round() as usize).max(1);
    if !(0.0..1.0).contains(&fraction) || held_out >= tasks.len() {
        return Err(DataError::Validation {
            fraction,
            tasks: tasks.len(),
            left: tasks.len().saturating_sub(held_out),
        });
    }
    tasks.shuffle(&mut ChaCha8Rng::seed_from_u64(options.seed));
    tasks.truncate(held_out);
    Ok(tasks)
}

/// The task ids in order of first appearance.
fn task_ids(trajectories: &[Trajectory]) -> Vec<String> {
    let mut seen = HashSet::new();
    let ids = trajectories.iter().map(|trajectory| &trajectory.task_id);
    ids.filter(|id| seen.insert(id.as_str())).cloned().collect()
}

fn trained_tokens(trajectories: &[Trajectory]) -> usize {
    trajectories.iter().map(Trajectory::trained_tokens).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> DataOptions {
        DataOptions::default()
    }

    /// A trajectory of `length` tokens whose last token is trained.
    fn trajectory(task: &str, rollout: &str, length: usize) -> Trajectory {
        let mut mask = vec![false; length];
        mask[length - 1] = true;
        Trajectory::new(task, rollout, (0..length as u32).collect(), mask)
    }

    fn names(trajectories: &[Trajectory]) -> Vec<&str> {
        trajectories
            .iter()
            .map(|trajectory| trajectory.rollout_id.as_str())
            .collect()
    }

    #[test]
    fn longest_keeps_one_trajectory_a_task_and_the_first_of_equals() {
        let all = vec![
            trajectory("a", "a0", 3),
            trajectory("b", "b0", 5),
            trajectory("a", "a1", 4),
            trajectory("a", "a2", 4),
        ];
        let options = DataOptions {
            selection: Selection::Longest,
            ..options()
        };
        assert_eq!(
            names(&select(all, &options).unwrap().training),
            ["b0", "a1"]
        );
    }

    #[test]
    fn long_trajectories_are_refused_cut_or_left_out() {
        let mut two = trajectory("a", "cut", 6);
        two.loss_mask[2] = true;
        two.old_log_probs = Some(vec![-1.0; 5]);
        let all = vec![
            trajectory("a", "short", 3),
            two,
            trajectory("a", "untrained", 6),
        ];
        let with = |too_long| DataOptions {
            max_length: Some(4),
            too_long,
            ..options()
        };

        let error = select(all.clone(), &with(TooLong::Error))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"cut\"") && error.contains("6 tokens"),
            "{error}"
        );

        let data = select(all.clone(), &with(TooLong::Drop)).unwrap();
        assert_eq!((names(&data.training), data.dropped), (vec!["short"], 2));

        let data = select(all, &with(TooLong::Truncate)).unwrap();
        assert_eq!(names(&data.training), ["short", "cut"]);
        assert_eq!((data.truncated, data.dropped), (1, 1));
        assert_eq!(data.training[1].validate(), Ok(()));
        assert_eq!(data.training[1].len(), 4);
    }

    #[test]
    fn validation_holds_out_whole_tasks_by_the_seed() {
        let all: Vec<_> = (0..10)
            .flat_map(|task| {
                (0..2)
                    .map(move |rollout| trajectory(&format!("t{task}"), &format!("r{rollout}"), 3))
            })
            .collect();
        let split = |seed| {
            let options = DataOptions {
                validation_fraction: 0.3,
                seed,
                ..options()
            };
            let data = select(all.clone(), &options).unwrap();
            assert_eq!((data.training.len(), data.validation.len()), (14, 6));
            let held_out = task_ids(&data.validation);
            assert!(
                task_ids(&data.training)
                    .iter()
                    .all(|task| !held_out.contains(task))
            );
            held_out
        };
        assert_eq!(split(1), split(1));
        assert_ne!(split(1), split(2));
    }

    #[test]
    fn a_split_that_leaves_nothing_is_refused() {
        let all = vec![trajectory("a", "0", 3)];
        let options = DataOptions {
            validation_fraction: 0.5,
            ..options()
        };
        let error = select(all, &options).unwrap_err();
        assert!(
            matches!(error, DataError::Validation { left: 0, .. }),
            "{error}"
        );
    }

    #[test]
    fn tasks_without_a_trained_token_are_left_out() {
        let mut untrained = trajectory("b", "0", 3);
        untrained.loss_mask = vec![true, false, false];
        let mut context = trajectory("a", "1", 3);
        context.loss_mask = vec![false; 3];
        let data = select(
            vec![trajectory("a", "0", 3), untrained, context],
            &options(),
        )
        .unwrap();
        assert_eq!(names(&data.training), ["0", "1"]);
        assert_eq!((data.untrained_tasks, data.dropped), (1, 0));
    }

    #[test]
    fn unknown_tasks_and_untrained_data_are_refused() {
        let mut untrained = trajectory("a", "0", 3);
        untrained.loss_mask = vec![true, false, false];
        let with = |tasks: &[&str]| DataOptions {
            tasks: tasks.iter().map(|task| task.to_string()).collect(),
            ..options()
        };
        let error = select(vec![untrained.clone()], &with(&["b"])).unwrap_err();
        assert!(matches!(error, DataError::NoSuchTask { .. }), "{error}");
        let error = select(vec![untrained], &with(&["a"])).unwrap_err();
        assert!(matches!(error, DataError::Empty(_)), "{error}");
    }
}
