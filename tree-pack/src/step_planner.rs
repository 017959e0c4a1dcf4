//! Assigns tasks to optimizer steps.

use std::num::NonZeroUsize;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Splits a data set into optimizer steps of whole tasks, in shuffled order.
///
/// Every task is in one step of an epoch. The order depends only on seed and epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPlanner {
    /// Seed of the shuffle; `None` keeps the order of the data set.
    pub seed: Option<u64>,
    /// Tasks in each step; the last step of an epoch may have fewer.
    pub tasks_per_step: NonZeroUsize,
}

impl StepPlanner {
    /// The steps of an epoch, each as indices of tasks (forests).
    pub fn plan(&self, tasks: usize, epoch: u64) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..tasks).collect();
        if let Some(seed) = self.seed {
            let mut generator = ChaCha8Rng::seed_from_u64(seed);
            generator.set_stream(epoch);
            order.shuffle(&mut generator);
        }
        order
            .chunks(self.tasks_per_step.get())
            .map(<[usize]>::to_vec)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planner(seed: Option<u64>, tasks_per_step: usize) -> StepPlanner {
        StepPlanner {
            seed,
            tasks_per_step: NonZeroUsize::new(tasks_per_step).unwrap(),
        }
    }

    #[test]
    fn every_task_is_in_one_step() {
        for (tasks, tasks_per_step) in [(0, 3), (1, 3), (9, 3), (100, 7)] {
            let steps = planner(Some(1), tasks_per_step).plan(tasks, 0);
            assert_eq!(steps.len(), tasks.div_ceil(tasks_per_step));
            let full = steps.iter().rev().skip(1);
            assert!(full.clone().all(|step| step.len() == tasks_per_step));
            let mut met: Vec<usize> = steps.concat();
            met.sort_unstable();
            assert!(met.into_iter().eq(0..tasks));
        }
    }

    #[test]
    fn without_a_seed_the_order_is_kept() {
        assert_eq!(
            planner(None, 2).plan(5, 3),
            [vec![0, 1], vec![2, 3], vec![4]]
        );
    }

    /// A run that is resumed with a later version must get the same order.
    #[test]
    fn the_order_follows_from_seed_and_epoch() {
        let plan = |seed, epoch| planner(Some(seed), 8).plan(8, epoch).concat();
        assert_eq!(plan(7, 0), SEED_7_EPOCH_0);
        assert_eq!(plan(7, 1), SEED_7_EPOCH_1);
        assert_ne!(plan(8, 0), SEED_7_EPOCH_0);
    }

    const SEED_7_EPOCH_0: [usize; 8] = [0, 7, 5, 2, 4, 1, 6, 3];
    const SEED_7_EPOCH_1: [usize; 8] = [0, 5, 7, 1, 4, 6, 3, 2];
}
