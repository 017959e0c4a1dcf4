//! Which tasks make up which optimizer step.

use std::num::NonZeroUsize;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Splits a data set into optimizer steps, shuffled by whole task.
///
/// A task is never in two steps of an epoch. The order depends on nothing but seed and epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPlanner {
    /// Seed of the shuffle; `None` keeps the order of the data.
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
