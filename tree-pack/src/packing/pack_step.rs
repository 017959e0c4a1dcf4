//! From the forests of a step to its packs.

use std::borrow::Borrow;

use super::counted::CountedStep;
use super::error::PackError;
use super::groups::pack_groups;
use super::options::PackOptions;
use super::packs::packs_of_groups;
use super::rules::StepRules;
use super::step_id::step_id;
use crate::forest::PrefixForest;
use crate::packs::PackedStep;
use crate::trajectory::Trajectory;

/// Packs forests as one optimizer step.
///
/// Each tree is whole in one pack, unless it exceeds the budget and [`PackOptions::partitioning`]
/// splits it over several packs. A bin-packing heuristic keeps the number of packs small. Weights
/// contain the denominator of the whole step.
///
/// `trajectories` is the data set from which the forests were built. The result depends on the
/// arguments alone.
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
    options.validate()?;
    let counted = CountedStep::new(trajectories, forests)?;
    let rules = StepRules::new(&counted, options)?;
    let groups = pack_groups(&counted, options)?;
    let packs = packs_of_groups(&counted, &rules, groups, options.pad_to_multiple);
    let mut step = PackedStep {
        packs,
        totals: counted.totals,
        trajectories: counted.step_trajectories(),
        merged: rules.merge,
    };
    let id = step_id(&step);
    for pack in &mut step.packs {
        pack.step = Some(id);
    }
    debug_assert_eq!(step.validate(), Ok(()));
    Ok(step)
}
