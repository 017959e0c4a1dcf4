//! The optimizer steps of a run: the tasks of each, and their packs.

pub mod schedule;
pub mod sharing;

use std::num::NonZeroUsize;
use std::sync::Arc;

use burn_tree_train::TaskSharing;
use serde::Serialize;
use tree_pack::{
    Aggregation, ForestError, LossForm, Objective, PackError, PackOptions, PackedStep,
    PrefixForest, StepPlanner, Trajectory, build_forests, flat_forests, pack_step,
};

/// How the tasks of a run are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// As trees: shared prefixes are computed once.
    Tree,
    /// As separate trajectories, packed into the same token budget.
    Flat,
    /// For each task the faster of the two that fits, as predicted by a short calibration.
    Auto,
}

/// The order of the tasks in the optimizer steps.
///
/// Every epoch shuffles the tasks and cuts them into batches, and every batch into steps. The steps
/// of a batch run in order, `passes_per_batch` times, before the next batch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepOrder {
    /// Seed of the shuffle.
    pub seed: u64,
    /// Tasks in each batch; the last batch of an epoch may have fewer.
    pub tasks_per_batch: NonZeroUsize,
    /// Tasks in each step; the last step of a batch may have fewer.
    pub tasks_per_step: NonZeroUsize,
    /// Passes over each batch.
    pub passes_per_batch: NonZeroUsize,
}

impl StepOrder {
    /// One pass over the tasks per epoch: every step is a batch of its own.
    pub fn once(tasks_per_step: NonZeroUsize, seed: u64) -> Self {
        Self {
            seed,
            tasks_per_batch: tasks_per_step,
            tasks_per_step,
            passes_per_batch: NonZeroUsize::MIN,
        }
    }

    fn steps_of_batch(&self, tasks: usize) -> usize {
        tasks.div_ceil(self.tasks_per_step.get()) * self.passes_per_batch.get()
    }

    fn steps_per_epoch(&self, tasks: usize) -> usize {
        let batch = self.tasks_per_batch.get();
        tasks / batch * self.steps_of_batch(batch) + self.steps_of_batch(tasks % batch)
    }
}

/// The position of an optimizer step in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPosition {
    /// Pass over the data, counted from 0.
    pub epoch: usize,
    /// The tasks of the batch that the step belongs to, cut into steps.
    pub batch: Vec<Vec<usize>>,
    /// Index of the step in its batch, counted from 0 over all passes.
    pub step_of_batch: usize,
    /// Whether this step is the last of its batch.
    pub ends_batch: bool,
}

impl StepPosition {
    /// Whether this step is the first of its batch.
    pub fn begins_batch(&self) -> bool {
        self.step_of_batch == 0
    }

    /// The tasks of the step.
    pub fn tasks(&self) -> &[usize] {
        &self.batch[self.step_of_batch % self.batch.len()]
    }
}

/// The steps of a run over its training data.
#[derive(Clone, Debug)]
pub struct StepPlan {
    trajectories: Arc<Vec<Trajectory>>,
    sharing: Sharing,
    forests: Vec<PrefixForest>,
    order: StepOrder,
    options: PackOptions,
}

impl StepPlan {
    /// A plan on trees ([`Sharing::Auto`], too: see [`Plans::choose`]) or on separate trajectories.
    /// The order of the tasks depends only on the seed, so both plans have the same steps.
    ///
    /// # Errors
    /// [`ForestError`] if a trajectory is invalid or a task is too large.
    pub fn new(
        trajectories: Arc<Vec<Trajectory>>,
        sharing: Sharing,
        options: PackOptions,
        order: StepOrder,
    ) -> Result<Self, ForestError> {
        let forests = match sharing {
            Sharing::Tree | Sharing::Auto => build_forests(&trajectories)?,
            Sharing::Flat => flat_forests(&trajectories)?,
        };
        Ok(Self {
            trajectories,
            sharing,
            forests,
            order,
            options,
        })
    }

    /// Whether prefixes are shared.
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// How steps are packed.
    pub fn options(&self) -> &PackOptions {
        &self.options
    }

    /// The tasks, in the order of the data.
    pub fn forests(&self) -> &[PrefixForest] {
        &self.forests
    }

    /// Number of tasks.
    pub fn tasks(&self) -> usize {
        self.forests.len()
    }

    /// The data.
    pub fn trajectories(&self) -> &[Trajectory] {
        &self.trajectories
    }

    /// The data, to add columns such as log-probabilities; cloned first if it is shared. Tokens,
    /// masks and task ids must not change, because the forests are built from them.
    pub fn trajectories_mut(&mut self) -> &mut [Trajectory] {
        Arc::make_mut(&mut self.trajectories).as_mut_slice()
    }

    /// Number of steps of one epoch.
    pub fn steps_per_epoch(&self) -> usize {
        self.order.steps_per_epoch(self.forests.len())
    }

    /// The epoch of step `step`, both counted from 0.
    pub fn epoch_of(&self, step: usize) -> usize {
        step / self.steps_per_epoch()
    }

    /// The position of step `step`, counted from 0 over all epochs.
    pub fn position(&self, step: usize) -> StepPosition {
        let epoch = self.epoch_of(step);
        let planner = StepPlanner {
            seed: Some(self.order.seed),
            tasks_per_step: self.order.tasks_per_batch,
        };
        let batches = planner.plan(self.forests.len(), epoch as u64);
        let steps_of_full_batch = self.order.steps_of_batch(self.order.tasks_per_batch.get());
        let step_of_epoch = step % self.steps_per_epoch();
        let batch = &batches[step_of_epoch / steps_of_full_batch];
        let step_of_batch = step_of_epoch % steps_of_full_batch;
        StepPosition {
            epoch,
            step_of_batch,
            ends_batch: step_of_batch + 1 == self.order.steps_of_batch(batch.len()),
            batch: batch
                .chunks(self.order.tasks_per_step.get())
                .map(<[usize]>::to_vec)
                .collect(),
        }
    }

    /// All tasks in the order of the data, in chunks of the size of a step.
    pub fn in_steps(&self) -> Vec<Vec<usize>> {
        let tasks: Vec<usize> = (0..self.forests.len()).collect();
        let steps = tasks.chunks(self.order.tasks_per_step.get());
        steps.map(<[usize]>::to_vec).collect()
    }

    /// The packs of step `step`, counted from 0 over all epochs.
    ///
    /// # Errors
    /// [`PackError`] if a tree exceeds the budget or the data lack a column of the loss.
    pub fn packs(&self, step: usize) -> Result<PackedStep, PackError> {
        self.pack(self.position(step).tasks(), &self.options)
    }

    /// The packs of all tasks as one step, in the order of the data.
    ///
    /// # Errors
    /// As [`StepPlan::packs`].
    pub fn all_packs(&self) -> Result<PackedStep, PackError> {
        pack_step(&self.trajectories, &self.forests, &self.options)
    }

    /// The layouts of [`StepPlan::packs`] for `tasks`, with a separate occurrence for every trained
    /// token of every trajectory.
    ///
    /// # Errors
    /// As [`StepPlan::packs`].
    pub fn packs_of_every_token(&self, tasks: &[usize]) -> Result<PackedStep, PackError> {
        let options = PackOptions {
            objective: Objective::PerOccurrence,
            aggregation: Aggregation::Sum,
            // The only loss form whose occurrences are never merged.
            loss: LossForm::PerTrajectory,
            ..self.options
        };
        self.pack(tasks, &options)
    }

    fn pack(&self, tasks: &[usize], options: &PackOptions) -> Result<PackedStep, PackError> {
        let forests: Vec<&PrefixForest> = tasks.iter().map(|&task| &self.forests[task]).collect();
        pack_step(&self.trajectories, &forests, options)
    }
}

/// The two plans of a run: on trees and on separate trajectories, with the same steps.
#[derive(Clone, Debug)]
pub struct Plans {
    /// On trees.
    pub tree: StepPlan,
    /// On separate trajectories.
    pub flat: StepPlan,
}

impl Plans {
    /// Both plans of the same data.
    ///
    /// # Errors
    /// As [`StepPlan::new`].
    pub fn new(
        trajectories: &Arc<Vec<Trajectory>>,
        options: PackOptions,
        order: StepOrder,
    ) -> Result<Self, ForestError> {
        let plan = |sharing| StepPlan::new(trajectories.clone(), sharing, options, order);
        Ok(Self {
            tree: plan(Sharing::Tree)?,
            flat: plan(Sharing::Flat)?,
        })
    }

    /// A plan with the same steps, whose tasks are trees or separate trajectories as given.
    ///
    /// # Panics
    /// If `sharing` does not have one entry per task.
    pub fn choose(&self, sharing: &[TaskSharing]) -> StepPlan {
        assert_eq!(sharing.len(), self.tree.tasks(), "one entry per task");
        let forests = sharing
            .iter()
            .zip(self.tree.forests.iter().zip(&self.flat.forests));
        let forests = forests.map(|(sharing, (tree, flat))| match sharing {
            TaskSharing::Tree => tree.clone(),
            TaskSharing::Flat => flat.clone(),
        });
        StepPlan {
            forests: forests.collect(),
            sharing: Sharing::Auto,
            ..self.tree.clone()
        }
    }
}

/// Tokens of the largest tree: the smallest token budget that needs no partitioning.
pub fn largest_tree(forests: &[PrefixForest]) -> usize {
    let trees = forests.iter().flat_map(|forest| forest.trees());
    trees.map(|tree| tree.rows.len()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NonZeroUsize = NonZeroUsize::MIN;
    const TWO: NonZeroUsize = NonZeroUsize::new(2).unwrap();
    const THREE: NonZeroUsize = NonZeroUsize::new(3).unwrap();

    fn trajectories() -> Arc<Vec<Trajectory>> {
        let all = (0..5).flat_map(|task| {
            (0..2).map(move |branch| {
                let tokens = vec![task, 10, 20 + branch];
                let mask = vec![false, true, true];
                Trajectory::new(format!("t{task}"), format!("r{branch}"), tokens, mask)
            })
        });
        Arc::new(all.collect())
    }

    fn plan(sharing: Sharing, order: StepOrder) -> StepPlan {
        StepPlan::new(trajectories(), sharing, PackOptions::new(64), order).unwrap()
    }

    #[test]
    fn both_kinds_of_plan_have_the_same_steps() {
        let order = StepOrder::once(TWO, 3);
        let (tree, flat) = (plan(Sharing::Tree, order), plan(Sharing::Flat, order));
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
        let plan = plan(Sharing::Tree, StepOrder::once(TWO, 3));
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

    /// Five tasks in batches of three, in steps of two, twice: 2 x 2 steps, then 2 x 1.
    #[test]
    fn batches_are_repeated_before_the_next_begins() {
        let order = StepOrder {
            seed: 3,
            tasks_per_batch: THREE,
            tasks_per_step: TWO,
            passes_per_batch: TWO,
        };
        let plan = plan(Sharing::Tree, order);
        assert_eq!(plan.steps_per_epoch(), 6);
        let positions: Vec<_> = (0..12).map(|step| plan.position(step)).collect();
        for (epoch, positions) in positions.chunks(6).enumerate() {
            assert!(positions.iter().all(|position| position.epoch == epoch));
            let begins: Vec<_> = positions.iter().map(StepPosition::begins_batch).collect();
            let ends: Vec<_> = positions
                .iter()
                .map(|position| position.ends_batch)
                .collect();
            assert_eq!(begins, [true, false, false, false, true, false]);
            assert_eq!(ends, [false, false, false, true, false, true]);
            let sizes: Vec<_> = positions
                .iter()
                .map(|position| position.tasks().len())
                .collect();
            assert_eq!(sizes, [2, 1, 2, 1, 2, 2]);
            assert_eq!(positions[0].tasks(), positions[2].tasks());
            assert_eq!(positions[1].tasks(), positions[3].tasks());
            let mut met = [0, 1, 4]
                .map(|step: usize| positions[step].tasks())
                .concat();
            met.sort_unstable();
            assert_eq!(met, [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn nothing_is_merged_where_every_token_counts() {
        let plan = plan(Sharing::Tree, StepOrder::once(ONE, 0));
        let merged = plan.packs(0).unwrap();
        let every = plan.packs_of_every_token(plan.position(0).tasks()).unwrap();
        assert_eq!(merged.packs[0].layout, every.packs[0].layout);
        let counts = [&merged, &every].map(|step| step.packs[0].occurrences.len());
        // The token 10 is trained in both trajectories.
        assert_eq!(counts, [3, 4]);
    }

    #[test]
    fn the_largest_tree_is_counted_without_repetition() {
        let forests = build_forests(&trajectories()).unwrap();
        assert_eq!(largest_tree(&forests), 4);
        let forests = flat_forests(&trajectories()).unwrap();
        assert_eq!(largest_tree(&forests), 3);
    }
}
