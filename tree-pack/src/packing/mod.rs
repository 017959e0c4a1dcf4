//! Trees into packs: what goes into which row, and with which weights.

mod bins;
mod error;

use std::borrow::Borrow;

use rayon::prelude::*;

use self::bins::fill_bins;
pub use self::error::{OccurrenceName, PackError};
use crate::counting_sort::counting_sort;
use crate::forest::{MAX_ROWS, NOBODY, PrefixForest};
use crate::layout::TreeLayout;
use crate::objective::{Aggregation, Coefficients, LossForm, Objective, StepTotals};
use crate::occurrence::{INPUT_NAMES, Inputs, StepForest, StepRules, occurrences_of};
use crate::pack::Pack;
use crate::trajectory::Trajectory;

/// How the trees of an optimizer step are packed and what is trained on them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackOptions {
    /// Most tokens in a pack, each tree token counting once.
    pub token_budget: usize,
    /// Packs are padded to a multiple of this; 1 means no padding. Padding may exceed the budget.
    pub pad_to_multiple: usize,
    /// How shared predictions count.
    pub objective: Objective,
    /// How their sum is normalised.
    pub aggregation: Aggregation,
    /// On what the loss of a prediction depends.
    pub loss: LossForm,
}

impl PackOptions {
    /// Token mean of the negative log-likelihood over all occurrences, no padding.
    pub fn new(token_budget: usize) -> Self {
        Self {
            token_budget,
            pad_to_multiple: 1,
            objective: Objective::default(),
            aggregation: Aggregation::TokenMean,
            loss: LossForm::default(),
        }
    }
}

/// The packs of one optimizer step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackedStep {
    /// The packs. The loss of the step is the sum of theirs.
    pub packs: Vec<Pack>,
    /// Sums over the step.
    pub totals: StepTotals,
    /// The trajectories of the step; [`crate::Occurrences::trajectories`] are indices in it.
    pub trajectories: Vec<StepTrajectory>,
    /// Whether occurrences of one `(row, target)` were merged.
    pub merged: bool,
}

/// A trajectory of an optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTrajectory {
    /// Index in the data set.
    pub data_index: u32,
    /// Number of its trained tokens.
    pub trained_tokens: u32,
}

/// Packs forests as one optimizer step: each tree whole in one pack, as few packs as the
/// heuristic finds, weights with the denominator of the whole step.
///
/// `trajectories` is the data set the forests were built from. The result depends on nothing but
/// the arguments.
///
/// # Errors
/// [`PackError`]; nothing is dropped or truncated.
///
/// # Example
/// ```
/// use tree_pack::{PackOptions, Trajectory, build_forests, pack_step};
///
/// let trajectories = [vec![1, 2, 3], vec![1, 2, 4]]
///     .map(|tokens| Trajectory::new("task", "run", tokens, vec![false, true, true]));
/// let forests = build_forests(&trajectories)?;
/// let step = pack_step(&trajectories, &forests, &PackOptions::new(1024))?;
/// let occurrences = &step.packs[0].occurrences;
/// assert_eq!(occurrences.rows, [0, 1, 1]);
/// assert_eq!(occurrences.targets, [2, 3, 4]);
/// assert_eq!(occurrences.weights, [0.5, 0.25, 0.25]); // four predictions, two of them equal
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn pack_step<F: Borrow<PrefixForest> + Sync>(
    trajectories: &[Trajectory],
    forests: &[F],
    options: &PackOptions,
) -> Result<PackedStep, PackError> {
    check_options(options)?;
    let (forests, totals) = enter_step(trajectories, forests)?;
    let coefficients = Coefficients::new(
        options.objective,
        options.aggregation,
        options.loss,
        &totals,
    )?;
    let inputs = step_inputs(trajectories, &forests, options.loss)?;
    let mut rules = StepRules {
        trajectories,
        objective: options.objective,
        loss: options.loss,
        coefficients,
        inputs,
        merge: true,
    };
    rules.merge = match find_unmergeable(&rules, &forests) {
        None => true,
        Some(error) if options.objective == Objective::PerPath => return Err(error),
        Some(_) => false,
    };

    let trees = step_trees(&forests, options.token_budget)?;
    let sizes: Vec<usize> = trees
        .iter()
        .map(|&(forest, tree)| {
            forests[forest as usize].forest.trees()[tree as usize]
                .rows
                .len()
        })
        .collect();
    let packs = fill_bins(&sizes, options.token_budget)
        .into_par_iter()
        .map(|bin| {
            let trees: Vec<_> = bin.into_iter().map(|item| trees[item as usize]).collect();
            build_pack(&rules, &forests, &trees, options.pad_to_multiple)
        })
        .collect();
    let step_trajectories = forests.iter().flat_map(|forest| {
        let indices = forest.forest.trajectories().iter();
        indices
            .zip(&forest.trained)
            .map(|(&data_index, &trained_tokens)| StepTrajectory {
                data_index,
                trained_tokens,
            })
    });
    let trajectories = step_trajectories.collect();
    Ok(PackedStep {
        packs,
        totals,
        trajectories,
        merged: rules.merge,
    })
}

fn check_options(options: &PackOptions) -> Result<(), PackError> {
    for (option, value) in [
        ("token_budget", options.token_budget),
        ("pad_to_multiple", options.pad_to_multiple),
    ] {
        if value == 0 || value > MAX_ROWS {
            let expected = format!("1 to {MAX_ROWS}");
            return Err(PackError::Option {
                option,
                value,
                expected,
            });
        }
    }
    let longest = options
        .token_budget
        .checked_next_multiple_of(options.pad_to_multiple);
    if longest.is_none_or(|longest| longest > MAX_ROWS) {
        return Err(PackError::Option {
            option: "token_budget",
            value: options.token_budget,
            expected: format!(
                "at most {MAX_ROWS} after padding to a multiple of {}",
                options.pad_to_multiple
            ),
        });
    }
    Ok(())
}

/// Counts the step, and checks that the forests belong to the trajectories.
fn enter_step<'a, F: Borrow<PrefixForest> + Sync>(
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
        members,
        member_offsets,
    })
}

/// Which inputs the occurrences carry: those that all trajectories have that train anything.
fn step_inputs(
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

/// The first occurrence that cannot be merged with an earlier one, as an error.
fn find_unmergeable(rules: &StepRules, forests: &[StepForest]) -> Option<PackError> {
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

/// All trees of the step as (forest, tree).
fn step_trees(forests: &[StepForest], budget: usize) -> Result<Vec<(u32, u32)>, PackError> {
    let mut trees = Vec::new();
    for (number, step_forest) in (0u32..).zip(forests) {
        let StepForest {
            forest,
            members,
            member_offsets,
            ..
        } = step_forest;
        for (index, tree) in forest.trees().iter().enumerate() {
            if tree.rows.len() > budget {
                let range = member_offsets[index] as usize..member_offsets[index + 1] as usize;
                let ends = members[range.clone()].iter().map(|&member| {
                    let end = forest.nodes()[forest.end_node(member as usize) as usize];
                    end.position as usize + end.token_count()
                });
                return Err(PackError::TreeOverBudget {
                    task_id: forest.task_id().to_owned(),
                    tree: index,
                    tokens: tree.rows.len(),
                    trajectories: range.len(),
                    longest_path: ends.max().unwrap_or(0),
                    token_budget: budget,
                });
            }
            trees.push((number, index as u32));
        }
    }
    if trees.len() > MAX_ROWS {
        return Err(PackError::TooLarge {
            what: "trees",
            count: trees.len(),
        });
    }
    Ok(trees)
}

fn build_pack(
    rules: &StepRules,
    forests: &[StepForest],
    trees: &[(u32, u32)],
    pad_to_multiple: usize,
) -> Pack {
    let parts = trees
        .iter()
        .map(|&(forest, tree)| (forests[forest as usize].forest, tree as usize));
    let layout = TreeLayout::from_trees(parts.clone());
    Pack {
        padded_len: layout.len().next_multiple_of(pad_to_multiple),
        task_ids: parts
            .map(|(forest, _)| forest.task_id().to_owned())
            .collect(),
        occurrences: occurrences_of(rules, forests, trees),
        layout,
    }
}
