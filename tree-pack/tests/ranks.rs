//! Steps spread over ranks: every pack once, parts of a tree together, weights of the whole step.

mod reference;

use std::num::NonZeroUsize;

use proptest::prelude::*;
use reference::{packed_loss, trajectories};
use tree_pack::{
    LossForm, PackCost, PackOptions, PackedStep, Partitioning, Trajectory, assign_to_ranks,
    build_forests, pack_step,
};

const COST: PackCost = PackCost {
    per_token: 1.0,
    per_visible_pair: 0.125,
};

fn ranks(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

fn step(trajectories: &[Trajectory], token_budget: usize, loss: LossForm) -> PackedStep {
    let options = PackOptions {
        loss,
        partitioning: Partitioning::Shared,
        ..PackOptions::new(token_budget)
    };
    pack_step(
        trajectories,
        &build_forests(trajectories).unwrap(),
        &options,
    )
    .unwrap()
}

proptest! {
    /// Costs are sums of multiples of 1/8, so that they are exact. The loss is a sum of at most
    /// some hundred f64 terms of order 1, added in another order.
    #[test]
    fn ranks_together_are_the_step(
        trajectories in trajectories(10),
        token_budget in 1usize..60,
        count in 1usize..9,
    ) {
        let step = step(&trajectories, token_budget, LossForm::PerToken);
        let assignment = assign_to_ranks(&step, ranks(count), &COST).unwrap();
        prop_assert_eq!(&assignment, &assign_to_ranks(&step, ranks(count), &COST).unwrap());
        let mut packs = assignment.packs.concat();
        packs.sort_unstable();
        prop_assert_eq!(packs, (0..step.packs.len()).collect::<Vec<_>>());

        let mut loss = 0.0;
        let mut weights = 0.0;
        let mut heaviest_unit = 0.0f64;
        for (rank, packs) in assignment.packs.iter().enumerate() {
            let own = assignment.step_of(&step, rank);
            prop_assert_eq!(own.validate(), Ok(()));
            prop_assert_eq!(own.totals, step.totals);
            prop_assert_eq!(own.packs.len(), packs.len());
            let cost: f64 = own.packs.iter().map(|pack| COST.of(pack)).sum();
            prop_assert_eq!(assignment.costs[rank], cost);
            let mut unit = 0.0;
            for (&number, pack) in packs.iter().zip(&own.packs) {
                prop_assert_eq!(&pack.layout, &step.packs[number].layout);
                unit = if pack.gateway.is_some() { unit } else { 0.0 } + COST.of(pack);
                heaviest_unit = heaviest_unit.max(unit);
                weights += pack.occurrences.weights.iter().sum::<f64>();
            }
            // Paths of rows are followed over gateways within the rank.
            loss += packed_loss(&own, LossForm::PerToken);
        }
        let whole: f64 = step.packs.iter().flat_map(|pack| &pack.occurrences.weights).sum();
        prop_assert!((weights - whole).abs() <= 1e-12 * (1.0 + whole));
        let expected = packed_loss(&step, LossForm::PerToken);
        prop_assert!((loss - expected).abs() <= 1e-11 * (1.0 + expected.abs()));

        // What any order of assigning to the least loaded rank keeps to.
        let mean = assignment.costs.iter().sum::<f64>() / count as f64;
        let largest = assignment.costs.iter().copied().fold(0.0, f64::max);
        prop_assert!(largest <= mean + heaviest_unit);
        prop_assert!((assignment.imbalance() - largest / mean).abs() < 1e-12);
    }
}

fn chain(task: &str, length: usize) -> Trajectory {
    Trajectory::new(task, "run", vec![1; length], vec![true; length])
}

/// Three trees on five ranks: each alone, two ranks without packs.
#[test]
fn more_ranks_than_trees() {
    let trajectories = [chain("a", 9), chain("b", 20), chain("c", 7)];
    let step = step(&trajectories, 10, LossForm::LogLikelihood);
    let tasks = |packs: &Vec<usize>| {
        let tasks = packs
            .iter()
            .map(|&pack| step.packs[pack].task_ids[0].as_str());
        tasks.collect::<Vec<_>>().join(" ")
    };
    let by_token = PackCost {
        per_token: 1.0,
        per_visible_pair: 0.0,
    };
    let assignment = assign_to_ranks(&step, ranks(5), &by_token).unwrap();
    let found: Vec<_> = assignment.packs.iter().map(tasks).collect();
    assert_eq!(found, ["b b", "a", "c", "", ""]);
    assert_eq!(assignment.costs, [20.0, 9.0, 7.0, 0.0, 0.0]);
    assert_eq!(assignment.imbalance(), 20.0 / (36.0 / 5.0));
    assert!(assignment.step_of(&step, 4).packs.is_empty());
    let loss = |step: &PackedStep| packed_loss(step, LossForm::LogLikelihood);
    let losses = (0..5).map(|rank| loss(&assignment.step_of(&step, rank)));
    let whole = loss(&step);
    assert!((losses.sum::<f64>() - whole).abs() < 1e-12 * whole);
}

/// The costliest first: packs of 3, 3, 3, 3 and 2 tokens on two ranks.
#[test]
fn long_trees_are_assigned_first() {
    let lengths = [2, 3, 1, 3, 3, 2];
    let names = ["a", "b", "c", "d", "e", "f"];
    let trajectories: Vec<_> = names
        .iter()
        .zip(lengths)
        .map(|(task, n)| chain(task, n))
        .collect();
    let step = step(&trajectories, 3, LossForm::LogLikelihood);
    let by_token = PackCost {
        per_token: 1.0,
        per_visible_pair: 0.0,
    };
    let assignment = assign_to_ranks(&step, ranks(2), &by_token).unwrap();
    assert_eq!(assignment.costs.iter().sum::<f64>(), 14.0);
    assert_eq!(assignment.imbalance(), 8.0 / 7.0, "{assignment:?}");
}

#[test]
fn costs_are_finite_and_not_negative() {
    let step = step(&[chain("a", 3)], 3, LossForm::LogLikelihood);
    for (cost, message) in [
        (
            PackCost {
                per_token: f64::NAN,
                per_visible_pair: 0.0,
            },
            "per_token is NaN, expected a finite number that is not negative",
        ),
        (
            PackCost {
                per_token: 0.0,
                per_visible_pair: -1.0,
            },
            "per_visible_pair is -1, expected a finite number that is not negative",
        ),
    ] {
        let error = assign_to_ranks(&step, ranks(2), &cost).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let free = PackCost {
        per_token: 0.0,
        per_visible_pair: 0.0,
    };
    let assignment = assign_to_ranks(&step, ranks(2), &free).unwrap();
    assert_eq!(assignment.imbalance(), 1.0);
    let nothing = assign_to_ranks(&PackedStep::default(), ranks(2), &COST).unwrap();
    assert_eq!(nothing.packs, [[], []] as [[usize; 0]; 2]);
}
