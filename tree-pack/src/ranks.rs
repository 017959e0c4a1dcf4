//! Distribution of the packs of a step over devices that train together.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroUsize;

use crate::packs::Pack;
use crate::packs::PackedStep;

/// The packs of a step that each rank trains.
#[derive(Clone, Debug, PartialEq)]
pub struct RankAssignment {
    /// For each rank, its packs as ascending indices in [`PackedStep::packs`]. A rank without packs
    /// still takes part in the all-reduce of the gradients.
    pub packs: Vec<Vec<usize>>,
    /// For each rank, the total cost of its packs.
    pub costs: Vec<f64>,
}

/// The cost of a pack is not a finite number of at least 0.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("pack {pack} costs {cost}, expected a finite number of at least 0")]
pub struct PackCostError {
    /// Index of the pack.
    pub pack: usize,
    /// What the function returned for it.
    pub cost: f64,
}

/// Distributes the packs of a step over ranks so that the largest cost of a rank is small. Packs
/// that belong together form a group. Groups are assigned in descending order of cost, each to the
/// rank with the smallest cost so far (longest processing time first): the largest cost is at most
/// `4/3` of the optimum.
///
/// `cost` returns the cost of a pack in any unit, for example a weighted sum of its tokens and
/// visible pairs ([`crate::TreeLayout::visible_pairs`], which includes past keys) with measured
/// coefficients.
///
/// The packs of a partitioned tree stay on one rank, because they continue each other. Trees that
/// share a pack also stay together; set [`crate::PackOptions::ranks`] to the number of ranks, so
/// that small trees do not all share one pack while other ranks are idle. A loss that compares
/// trajectories of different trees needs them on one rank; this function does not ensure that. The
/// losses and gradients of all ranks add up to those of the step: weights contain the denominator
/// of the whole step, so gradients are summed, not averaged.
///
/// # Errors
/// [`PackCostError`].
///
/// # Example
/// ```
/// use std::num::NonZeroUsize;
/// use tree_pack::{Pack, PackOptions, Trajectory, assign_to_ranks, build_forests, pack_step};
///
/// let trajectories: Vec<_> = [5, 3, 2]
///     .into_iter()
///     .map(|n| Trajectory::new(format!("task{n}"), "run", vec![1; n], vec![true; n]))
///     .collect();
/// let step = pack_step(&trajectories, &build_forests(&trajectories)?, &PackOptions::new(5))?;
/// let cost = |pack: &Pack| {
///     pack.layout.len() as f64 + 0.01 * pack.layout.visible_pairs() as f64
/// };
/// let ranks = assign_to_ranks(&step, NonZeroUsize::new(2).unwrap(), cost)?;
/// assert_eq!(ranks.packs, [[0], [1]]); // 5 tokens, and 3 and 2 in one pack
/// assert!(ranks.imbalance() < 1.01);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn assign_to_ranks(
    step: &PackedStep,
    ranks: NonZeroUsize,
    cost: impl Fn(&Pack) -> f64,
) -> Result<RankAssignment, PackCostError> {
    let mut groups: Vec<(f64, Vec<usize>)> = Vec::new();
    let mut group_of: Vec<usize> = Vec::with_capacity(step.packs.len());
    for (number, pack) in step.packs.iter().enumerate() {
        let group = match &pack.gateway {
            Some(gateway) => group_of[gateway.parent as usize],
            None => {
                groups.push((0.0, Vec::new()));
                groups.len() - 1
            }
        };
        group_of.push(group);
        let cost = cost(pack);
        if !(cost.is_finite() && cost >= 0.0) {
            return Err(PackCostError { pack: number, cost });
        }
        // The bits of a negative zero would be out of order below.
        groups[group].0 += cost.abs();
        groups[group].1.push(number);
    }
    groups.sort_by(|(one, _), (other, _)| other.total_cmp(one));

    let mut assignment = RankAssignment {
        packs: vec![Vec::new(); ranks.get()],
        costs: vec![0.0; ranks.get()],
    };
    // The bits of non-negative floats are in the order of the floats.
    let ordered = |cost: f64, rank: usize| Reverse((cost.to_bits(), rank));
    let mut least: BinaryHeap<_> = (0..ranks.get()).map(|rank| ordered(0.0, rank)).collect();
    for (cost, packs) in groups {
        let Some(Reverse((_, rank))) = least.pop() else {
            break;
        };
        assignment.costs[rank] += cost;
        assignment.packs[rank].extend(packs);
        least.push(ordered(assignment.costs[rank], rank));
    }
    for packs in &mut assignment.packs {
        packs.sort_unstable();
    }
    Ok(assignment)
}

impl RankAssignment {
    /// The largest cost of a rank divided by the mean cost: 1 if all costs are equal or 0. Its
    /// inverse is an upper bound of the utilisation of the ranks.
    pub fn imbalance(&self) -> f64 {
        let sum: f64 = self.costs.iter().sum();
        let largest = self.costs.iter().copied().fold(0.0, f64::max);
        match sum > 0.0 {
            true => largest * self.costs.len() as f64 / sum,
            false => 1.0,
        }
    }

    /// The packs of a rank as a step. Weights, totals and trajectories are those of the whole step.
    ///
    /// # Panics
    /// If the rank does not exist, or the assignment belongs to another step.
    pub fn step_of(&self, step: &PackedStep, rank: usize) -> PackedStep {
        let own = &self.packs[rank];
        let renumbered = |pack: u32| {
            let index = own.binary_search(&(pack as usize));
            index.expect("packs that continue each other are on one rank") as u32
        };
        let mut packs: Vec<Pack> = own.iter().map(|&pack| step.packs[pack].clone()).collect();
        for gateway in packs.iter_mut().filter_map(|pack| pack.gateway.as_mut()) {
            gateway.parent = renumbered(gateway.parent);
            for run in &mut gateway.runs {
                run.pack = renumbered(run.pack);
            }
        }
        PackedStep {
            packs,
            totals: step.totals,
            trajectories: step.trajectories.clone(),
            merged: step.merged,
        }
    }
}
