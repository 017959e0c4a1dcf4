//! The optimizer steps of a run: which tasks are in each, and their packs.

use std::num::NonZeroUsize;

use tree_pack::{
    ForestError, PackError, PackOptions, PackedStep, PrefixForest, StepPlanner, Trajectory,
    build_forests, flat_forests, pack_step,
};

/// Whether trajectories of a task share their prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Each shared token is computed once.
    Tree,
    /// Each trajectory is computed by itself, packed into rows of the same budget.
    Flat,
}

/// The steps of a run over its training data.
#[derive(Clone, Debug)]
pub struct StepPlan<'a> {
    trajectories: &'a [Trajectory],
    sharing: Sharing,
    forests: Vec<PrefixForest>,
    planner: StepPlanner,
    options: PackOptions,
}

impl<'a> StepPlan<'a> {
    /// Merges the trajectories into forests, or lays each out by itself. The order of the tasks
    /// depends on nothing but the seed, so plans of both kinds have the same steps.
    ///
    /// # Errors
    /// [`ForestError`] if a trajectory is invalid or a task too large.
    pub fn new(
        trajectories: &'a [Trajectory],
        sharing: Sharing,
        options: PackOptions,
        tasks_per_step: NonZeroUsize,
        seed: u64,
    ) -> Result<Self, ForestError> {
        let forests = match sharing {
            Sharing::Tree => build_forests(trajectories)?,
            Sharing::Flat => flat_forests(trajectories)?,
        };
        let planner = StepPlanner {
            seed: Some(seed),
            tasks_per_step,
        };
        Ok(Self {
            trajectories,
            sharing,
            forests,
            planner,
            options,
        })
    }

    /// Whether prefixes are shared.
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Number of tasks.
    pub fn tasks(&self) -> usize {
        self.forests.len()
    }

    /// Steps of one pass over the data.
    pub fn steps_per_epoch(&self) -> usize {
        self.forests
            .len()
            .div_ceil(self.planner.tasks_per_step.get())
    }

    /// The pass over the data to which step `step` belongs, both counted from 0.
    pub fn epoch_of(&self, step: usize) -> usize {
        step / self.steps_per_epoch()
    }

    /// The packs of step `step`, counted from 0 over all epochs.
    ///
    /// # Errors
    /// [`PackError`] if a tree does not fit the budget or the objective cannot be used.
    pub fn packs(&self, step: usize) -> Result<PackedStep, PackError> {
        let epoch = self
            .planner
            .plan(self.forests.len(), self.epoch_of(step) as u64);
        let tasks = &epoch[step % self.steps_per_epoch()];
        let forests: Vec<&PrefixForest> = tasks.iter().map(|&task| &self.forests[task]).collect();
        pack_step(self.trajectories, &forests, &self.options)
    }

    /// The packs of all tasks as one step, in the order of the data.
    ///
    /// # Errors
    /// As [`StepPlan::packs`].
    pub fn all_packs(&self) -> Result<PackedStep, PackError> {
        pack_step(self.trajectories, &self.forests, &self.options)
    }
}

/// Tokens of the largest tree, which is the smallest budget that fits every pack.
pub fn largest_tree(forests: &[PrefixForest]) -> usize {
    let trees = forests.iter().flat_map(|forest| forest.trees());
    trees.map(|tree| tree.rows.len()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trajectories() -> Vec<Trajectory> {
        (0..5)
            .flat_map(|task| {
                (0..2).map(move |branch| {
                    let tokens = vec![task, 10, 20 + branch];
                    let mask = vec![false, true, true];
                    Trajectory::new(format!("t{task}"), format!("r{branch}"), tokens, mask)
                })
            })
            .collect()
    }

    fn plan(trajectories: &[Trajectory], sharing: Sharing) -> StepPlan<'_> {
        let two = NonZeroUsize::new(2).unwrap();
        StepPlan::new(trajectories, sharing, PackOptions::new(64), two, 3).unwrap()
    }

    #[test]
    fn both_kinds_of_plan_have_the_same_steps() {
        let all = trajectories();
        let (tree, flat) = (plan(&all, Sharing::Tree), plan(&all, Sharing::Flat));
        assert_eq!((tree.steps_per_epoch(), flat.steps_per_epoch()), (3, 3));
        for step in 0..6 {
            let (tree, flat) = (tree.packs(step).unwrap(), flat.packs(step).unwrap());
            assert_eq!(tree.totals.tokens, flat.totals.tokens);
            assert_eq!(tree.trajectories, flat.trajectories);
            assert!(tree.totals.rows < flat.totals.rows);
        }
    }

    #[test]
    fn every_epoch_visits_every_task_once_in_another_order() {
        let all = trajectories();
        let plan = plan(&all, Sharing::Tree);
        let order = |epoch: usize| -> Vec<u32> {
            let steps = epoch * 3..(epoch + 1) * 3;
            let packed = steps.map(|step| plan.packs(step).unwrap());
            packed
                .flat_map(|step| step.trajectories)
                .map(|entry| entry.data_index)
                .collect()
        };
        let sorted = |mut order: Vec<u32>| {
            order.sort_unstable();
            order
        };
        assert_eq!(sorted(order(0)), (0..10).collect::<Vec<_>>());
        assert_eq!(sorted(order(1)), (0..10).collect::<Vec<_>>());
        assert_ne!(order(0), order(1));
        assert_eq!((plan.epoch_of(2), plan.epoch_of(3)), (0, 1));
    }

    #[test]
    fn the_largest_tree_is_counted_without_repetition() {
        let forests = build_forests(&trajectories()).unwrap();
        assert_eq!(largest_tree(&forests), 4);
        let forests = flat_forests(&trajectories()).unwrap();
        assert_eq!(largest_tree(&forests), 3);
    }
}
