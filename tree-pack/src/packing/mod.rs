//! Trees into packs: what goes into which row, and with which weights.

mod bins;
mod enter;
mod error;
mod merging;
mod partition;
mod validate;

use std::borrow::Borrow;

use rayon::prelude::*;

use self::bins::fill_bins_evenly;
use self::enter::{enter_step, step_inputs};
pub use self::error::{OccurrenceName, PackError};
use self::merging::find_unmergeable;
pub use self::partition::Partitioning;
use self::partition::{Partition, SmallerTrees, TreeNodes, packs_of};
#[cfg(feature = "burn")]
pub(crate) use self::validate::other_step;
pub use self::validate::{PacksError, validate_packs};
use crate::forest::{MAX_ROWS, PrefixForest};
use crate::ids::StepId;
use crate::layout::TreeLayout;
use crate::objective::{Aggregation, Coefficients, LossForm, Objective, StepTotals};
use crate::occurrence::{StepForest, StepRules, occurrences_of};
use crate::pack::Pack;
use crate::trajectory::Trajectory;

/// How the trees of an optimizer step are packed and what is trained on them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackOptions {
    /// Most tokens in a pack, each tree token counting once. Past keys of a [`crate::Gateway`] do
    /// not count.
    pub token_budget: usize,
    /// Packs are padded to a multiple of this; 1 means no padding. Padding may exceed the budget.
    pub pad_to_multiple: usize,
    /// How shared predictions count.
    pub objective: Objective,
    /// How their sum is normalised.
    pub aggregation: Aggregation,
    /// On what the loss of a prediction depends.
    pub loss: LossForm,
    /// What becomes of trees over the budget.
    pub partitioning: Partitioning,
    /// Devices that will train the packs of the step together ([`crate::assign_to_ranks`]). The
    /// number of packs of whole trees is a multiple of it, and their sizes are even, as far as the
    /// trees allow.
    pub ranks: usize,
}

impl PackOptions {
    /// Token mean of the negative log-likelihood over all occurrences, no padding, one device;
    /// trees over the budget are refused.
    pub fn new(token_budget: usize) -> Self {
        Self {
            token_budget,
            pad_to_multiple: 1,
            objective: Objective::default(),
            aggregation: Aggregation::TokenMean,
            loss: LossForm::default(),
            partitioning: Partitioning::default(),
            ranks: 1,
        }
    }
}

/// The packs of one optimizer step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackedStep {
    /// The packs; what one continues from ([`Pack::gateway`]) comes before it. The loss of the
    /// step is the sum of theirs.
    pub packs: Vec<Pack>,
    /// Sums over the step.
    pub totals: StepTotals,
    /// The trajectories of the step; [`crate::Occurrences::trajectories`] are indices in it.
    pub trajectories: Vec<StepTrajectory>,
    /// Whether occurrences of one `(row, target)` were merged.
    pub merged: bool,
}

/// A trajectory of an optimizer step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTrajectory {
    /// Its task.
    pub task_id: String,
    /// Its rollout.
    pub rollout_id: String,
    /// Its segment of the rollout.
    pub segment: u32,
    /// Index in the data set.
    pub data_index: u32,
    /// Number of its trained tokens.
    pub trained_tokens: u32,
}

/// Packs forests as one optimizer step: each tree whole in one pack, or in packs of its own if it
/// is over the budget and [`PackOptions::partitioning`] allows it; as few packs as the heuristic
/// finds, weights with the denominator of the whole step.
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

    let packs = step_packs(&rules, &forests, options)?;
    let step_trajectories = forests.iter().flat_map(|forest| {
        let indices = forest.forest.trajectories().iter();
        indices
            .zip(&forest.trained)
            .map(|(&data_index, &trained_tokens)| {
                let trajectory = &trajectories[data_index as usize];
                StepTrajectory {
                    task_id: trajectory.task_id.clone(),
                    rollout_id: trajectory.rollout_id.clone(),
                    segment: trajectory.segment,
                    data_index,
                    trained_tokens,
                }
            })
    });
    let mut step = PackedStep {
        packs,
        totals,
        trajectories: step_trajectories.collect(),
        merged: rules.merge,
    };
    let id = StepId::of(&step);
    for pack in &mut step.packs {
        pack.step = Some(id);
    }
    debug_assert_eq!(step.validate(), Ok(()));
    Ok(step)
}

fn check_options(options: &PackOptions) -> Result<(), PackError> {
    for (option, value) in [
        ("token_budget", options.token_budget),
        ("pad_to_multiple", options.pad_to_multiple),
        ("ranks", options.ranks),
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

/// What becomes one pack or several that belong together.
enum Unit {
    /// Whole trees that share a pack, as (forest, tree).
    Whole(Vec<(u32, u32)>),
    /// A tree in parts.
    Parts(Partition),
    /// A tree as several.
    Trees(SmallerTrees),
}

impl Unit {
    fn packs(&self) -> usize {
        match self {
            Self::Whole(_) => 1,
            Self::Parts(partition) => partition.len(),
            Self::Trees(trees) => trees.len(),
        }
    }
}

/// The packs of all trees, in order of their first ones; the parts of a tree are together.
fn step_packs(
    rules: &StepRules,
    forests: &[StepForest],
    options: &PackOptions,
) -> Result<Vec<Pack>, PackError> {
    let budget = options.token_budget;
    let trees = step_trees(forests)?;
    let rows_of = |&(forest, tree): &(u32, u32)| {
        let forest = forests[forest as usize].forest;
        forest.trees()[tree as usize].rows.len()
    };
    let per_node = options.partitioning == Partitioning::PerNode;
    let (whole, split): (Vec<_>, Vec<_>) = trees
        .into_iter()
        .partition(|tree| rows_of(tree) <= budget && !per_node);
    let sizes: Vec<usize> = whole.iter().map(rows_of).collect();
    let bins = fill_bins_evenly(&sizes, budget, options.ranks).into_iter();
    // By the first tree of each.
    let mut units: Vec<((u32, u32), Unit)> = bins
        .map(|bin| {
            let trees: Vec<_> = bin.into_iter().map(|item| whole[item as usize]).collect();
            (trees[0], Unit::Whole(trees))
        })
        .collect();
    // Collecting the results first makes the reported error that of the first tree.
    let split: Vec<_> = split
        .into_par_iter()
        .map(|(forest, tree)| {
            let unit = split_tree(&forests[forest as usize], tree as usize, options)?;
            Ok(((forest, tree), unit))
        })
        .collect();
    units.extend(split.into_iter().collect::<Result<Vec<_>, PackError>>()?);
    units.sort_unstable_by_key(|&(first, _)| first);

    let mut count = 0;
    let mut first_packs = Vec::with_capacity(units.len());
    for (_, unit) in &units {
        first_packs.push(count as u32);
        count += unit.packs();
    }
    let units = units.into_par_iter().zip(first_packs);
    let padding = options.pad_to_multiple;
    let packs = units.flat_map_iter(|(((forest, tree), unit), first_pack)| {
        let owner = forests[forest as usize].forest;
        let occurrences = || occurrences_of(rules, forests, &[(forest, tree)]);
        match unit {
            Unit::Whole(trees) => vec![build_pack(rules, forests, &trees, padding)],
            Unit::Parts(partition) => {
                let first_row = owner.trees()[tree as usize].rows.start;
                packs_of(
                    &partition,
                    owner,
                    first_row,
                    &occurrences(),
                    first_pack,
                    padding,
                )
            }
            Unit::Trees(trees) => trees.packs(
                owner,
                &tree_nodes(&forests[forest as usize], tree as usize),
                &occurrences(),
                padding,
            ),
        }
    });
    Ok(packs.collect())
}

/// A tree that does not become part of one pack.
fn split_tree(
    step_forest: &StepForest,
    tree: usize,
    options: &PackOptions,
) -> Result<Unit, PackError> {
    let budget = options.token_budget;
    let nodes = tree_nodes(step_forest, tree);
    match options.partitioning {
        Partitioning::Refuse => Err(over_budget(step_forest, tree, budget)),
        Partitioning::Connected => Ok(Unit::Parts(Partition::connected(&nodes, budget as u32))),
        Partitioning::Shared => Ok(Unit::Parts(Partition::shared(&nodes, budget as u32))),
        Partitioning::PerNode => Ok(Unit::Parts(Partition::per_node(&nodes, budget as u32))),
        Partitioning::RepeatedPrefixes => {
            let trees = SmallerTrees::new(nodes.nodes, budget);
            let trees = trees.map_err(|tokens| PackError::PathOverBudget {
                task_id: step_forest.forest.task_id().to_owned(),
                tree,
                tokens,
                token_budget: budget,
            })?;
            Ok(Unit::Trees(trees))
        }
    }
}

fn tree_nodes<'a>(step_forest: &'a StepForest, tree: usize) -> TreeNodes<'a> {
    let numbers = step_forest.forest.trees()[tree].nodes.clone();
    let range = numbers.start as usize..numbers.end as usize;
    TreeNodes {
        nodes: &step_forest.forest.nodes()[range.clone()],
        first_node: numbers.start,
        trajectories: &step_forest.trajectories_by_node[range],
    }
}

/// All trees of the step as (forest, tree).
fn step_trees(forests: &[StepForest]) -> Result<Vec<(u32, u32)>, PackError> {
    let trees: Vec<_> = (0u32..)
        .zip(forests)
        .flat_map(|(forest, step_forest)| {
            let trees = step_forest.forest.trees().len() as u32;
            (0..trees).map(move |tree| (forest, tree))
        })
        .collect();
    if trees.len() > MAX_ROWS {
        return Err(PackError::TooLarge {
            what: "trees",
            count: trees.len(),
        });
    }
    Ok(trees)
}

fn over_budget(step_forest: &StepForest, tree: usize, budget: usize) -> PackError {
    let StepForest {
        forest,
        members,
        member_offsets,
        ..
    } = step_forest;
    let range = member_offsets[tree] as usize..member_offsets[tree + 1] as usize;
    let ends = members[range.clone()].iter().map(|&member| {
        let end = forest.nodes()[forest.end_node(member as usize) as usize];
        end.position as usize + end.token_count()
    });
    PackError::TreeOverBudget {
        task_id: forest.task_id().to_owned(),
        tree,
        tokens: forest.trees()[tree].rows.len(),
        trajectories: range.len(),
        longest_path: ends.max().unwrap_or(0),
        token_budget: budget,
    }
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
        trajectory_counts: trees
            .iter()
            .flat_map(|&(forest, tree)| {
                let tree = tree_nodes(&forests[forest as usize], tree as usize);
                let nodes = tree.nodes.iter().zip(tree.trajectories);
                nodes.flat_map(|(node, &count)| std::iter::repeat_n(count, node.token_count()))
            })
            .collect(),
        gateway: None,
        step: None,
        layout,
    }
}
