//! Steps distributed over ranks: every pack once, parts of a tree together, weights of the whole
//! step.

mod reference;

use std::num::NonZeroUsize;

use proptest::prelude::*;
use reference::{packed_loss, trajectories};
use tree_pack::{
    LossForm, Pack, PackOptions, PackedStep, Partitioning, PrefixForest, Trajectory,
    assign_to_ranks, build_forests, pack_step,
};

fn cost(pack: &Pack) -> f64 {
    pack.layout.len() as f64 + 0.125 * pack.layout.visible_pairs() as f64
}

fn tokens(pack: &Pack) -> f64 {
    pack.layout.len() as f64
}

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
    /// Costs are sums of multiples of 1/8, so that they are exact. The loss is a sum of at most a
    /// few hundred f64 terms of order 1, in another order.
    #[test]
    fn ranks_together_are_the_step(
        trajectories in trajectories(10),
        token_budget in 1usize..60,
        count in 1usize..9,
    ) {
        let step = step(&trajectories, token_budget, LossForm::PerToken);
        let assignment = assign_to_ranks(&step, ranks(count), cost).unwrap();
        prop_assert_eq!(&assignment, &assign_to_ranks(&step, ranks(count), cost).unwrap());
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
            let sum: f64 = own.packs.iter().map(cost).sum();
            prop_assert_eq!(assignment.costs[rank], sum);
            let mut unit = 0.0;
            for (&number, pack) in packs.iter().zip(&own.packs) {
                prop_assert_eq!(&pack.layout, &step.packs[number].layout);
                unit = if pack.gateway.is_some() { unit } else { 0.0 } + cost(pack);
                heaviest_unit = heaviest_unit.max(unit);
                weights += pack.occurrences.weights.iter().sum::<f64>();
            }
            // Paths of rows continue over gateways within the rank.
            loss += packed_loss(&own, LossForm::PerToken);
        }
        let whole: f64 = step.packs.iter().flat_map(|pack| &pack.occurrences.weights).sum();
        prop_assert!((weights - whole).abs() <= 1e-12 * (1.0 + whole));
        let expected = packed_loss(&step, LossForm::PerToken);
        prop_assert!((loss - expected).abs() <= 1e-11 * (1.0 + expected.abs()));

        // The bound of every assignment to the least loaded rank.
        let mean = assignment.costs.iter().sum::<f64>() / count as f64;
        let largest = assignment.costs.iter().copied().fold(0.0, f64::max);
        prop_assert!(largest <= mean + heaviest_unit);
        prop_assert!((assignment.imbalance() - largest / mean).abs() < 1e-12);
    }
}

fn chain(task: &str, length: usize) -> Trajectory {
    Trajectory::new(task, "run", vec![1; length], vec![true; length])
}

/// Three trees on five ranks: one each, and two ranks without packs.
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
    let assignment = assign_to_ranks(&step, ranks(5), tokens).unwrap();
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
    let assignment = assign_to_ranks(&step, ranks(2), tokens).unwrap();
    assert_eq!(assignment.costs.iter().sum::<f64>(), 14.0);
    assert_eq!(assignment.imbalance(), 8.0 / 7.0, "{assignment:?}");
}

#[test]
fn costs_are_finite_and_not_negative() {
    let step = step(&[chain("a", 3), chain("b", 2)], 3, LossForm::LogLikelihood);
    for (value, message) in [
        (
            f64::NAN,
            "pack 0 costs NaN, expected a finite number of at least 0",
        ),
        (
            -1.0,
            "pack 0 costs -1, expected a finite number of at least 0",
        ),
    ] {
        let error = assign_to_ranks(&step, ranks(2), |_| value).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let assignment = assign_to_ranks(&step, ranks(2), |_| -0.0).unwrap();
    assert_eq!(assignment.imbalance(), 1.0);
    let nothing = assign_to_ranks(&PackedStep::default(), ranks(2), cost).unwrap();
    assert_eq!(nothing.packs, [[], []] as [[usize; 0]; 2]);
}

/// Eight trees that would fit into one pack use eight ranks if packed for this number; the budget
/// cuts a large tree, not the number of ranks.
#[test]
fn packs_are_made_for_the_ranks() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut trajectories: Vec<_> = names.iter().map(|task| chain(task, 100)).collect();
    let packed = |trajectories: &[Trajectory], ranks| {
        let options = PackOptions {
            ranks,
            partitioning: Partitioning::Connected,
            ..PackOptions::new(1000)
        };
        let forests = build_forests(trajectories).unwrap();
        pack_step(trajectories, &forests, &options).unwrap()
    };
    let imbalance = |trajectories: &[Trajectory], made_for, count| {
        let step = packed(trajectories, made_for);
        assign_to_ranks(&step, ranks(count), tokens)
            .unwrap()
            .imbalance()
    };
    assert_eq!(imbalance(&trajectories, 1, 8), 8.0);
    assert_eq!(imbalance(&trajectories, 8, 8), 1.0);
    assert_eq!(imbalance(&trajectories, 3, 3), 300.0 * 3.0 / 800.0);
    trajectories.push(chain("large", 2500));
    let step = packed(&trajectories, 8);
    let lengths: Vec<_> = step.packs.iter().map(|pack| pack.layout.len()).collect();
    assert_eq!(
        lengths,
        [100, 100, 100, 100, 100, 100, 100, 100, 500, 1000, 1000]
    );

    let options = PackOptions {
        ranks: 0,
        ..PackOptions::new(1000)
    };
    let error = pack_step::<PrefixForest>(&[], &[], &options).unwrap_err();
    assert_eq!(error.to_string(), "ranks is 0, expected 1 to 2147483647");
}
