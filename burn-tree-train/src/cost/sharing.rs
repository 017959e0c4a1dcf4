//! The choice between trees and separate trajectories for each task: of those that fit, the one that
//! is predicted to be faster.
//!
//! Loss and gradients are the same. A step may mix both: [`pack_step`] takes the merged forest of
//! one task and the flat forest of another.

use thiserror::Error;
use tree_pack::{
    Aggregation, LossForm, Pack, PackError, PackOptions, PrefixForest, Trajectory, pack_step,
};

use crate::{StepTime, StepWork};

/// How a task is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskSharing {
    /// Prefixes that trajectories have in common are computed once.
    Tree,
    /// Every trajectory is computed by itself.
    Flat,
}

/// The cost of a task, as trees or as separate trajectories.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskCost {
    /// The work. Of a pack that is shared with other tasks, only the share of this task counts.
    pub work: StepWork,
    /// Predicted seconds.
    pub seconds: f64,
}

/// Why a task does not fit, as trees or as separate trajectories.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Unfit {
    /// The task cannot be packed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// Its packs need too much memory.
    #[error("its packs need {bytes} bytes of memory, more than {limit}")]
    Memory {
        /// Bytes needed.
        bytes: u64,
        /// Bytes available.
        limit: u64,
    },
}

/// A task that fits neither as trees nor as separate trajectories.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("task {task_id:?} fits neither as trees ({tree}) nor as separate trajectories ({flat})")]
pub struct NeitherFits {
    /// The task.
    pub task_id: String,
    /// Why not as trees.
    pub tree: Unfit,
    /// Why not as separate trajectories.
    pub flat: Unfit,
}

/// The choice for one task, with the costs it is based on.
#[derive(Clone, Debug, PartialEq)]
pub struct SharingChoice {
    /// The task.
    pub task_id: String,
    /// The cost as trees.
    pub tree: Result<TaskCost, Unfit>,
    /// The cost as separate trajectories.
    pub flat: Result<TaskCost, Unfit>,
    /// The choice: the one that fits, or the faster one if both fit; trees if they are equal.
    pub sharing: TaskSharing,
}

impl SharingChoice {
    /// Predicted seconds of the choice.
    pub fn seconds(&self) -> f64 {
        let chosen = match self.sharing {
            TaskSharing::Tree => &self.tree,
            TaskSharing::Flat => &self.flat,
        };
        chosen.as_ref().map_or(f64::NAN, |cost| cost.seconds)
    }

    /// Predicted speed-up of trees over separate trajectories. `None` if one of the two does not
    /// fit.
    pub fn predicted_speedup(&self) -> Option<f64> {
        let (Ok(tree), Ok(flat)) = (&self.tree, &self.flat) else {
            return None;
        };
        Some(flat.seconds / tree.seconds)
    }
}

/// A limit on the memory of packs.
#[derive(Clone, Copy)]
pub struct MemoryLimit<'a> {
    /// Estimates the bytes that a step of these packs needs at its peak.
    pub bytes: &'a dyn Fn(&[Pack]) -> u64,
    /// Largest allowed value.
    pub limit: u64,
}

/// Chooses between trees and separate trajectories for each task.
pub struct SharingGate<'a> {
    /// The data set that the forests are built from.
    pub trajectories: &'a [Trajectory],
    /// How steps are packed.
    pub options: PackOptions,
    /// The calibrated step time on this machine.
    pub time: StepTime,
    /// Whether the model has recurrent layers.
    pub recurrent: bool,
    /// The memory limit, if any.
    pub memory: Option<MemoryLimit<'a>>,
}

impl SharingGate<'_> {
    /// Chooses for one task, given its merged forest ([`tree_pack::build_forests`]) and its flat
    /// forest ([`tree_pack::flat_forests`]).
    ///
    /// # Errors
    /// [`NeitherFits`].
    pub fn choose(
        &self,
        tree: &PrefixForest,
        flat: &PrefixForest,
    ) -> Result<SharingChoice, Box<NeitherFits>> {
        let task_id = tree.task_id().to_owned();
        let (tree, flat) = (self.cost(tree), self.cost(flat));
        let sharing = match (&tree, &flat) {
            (Ok(tree), Ok(flat)) if flat.seconds < tree.seconds => TaskSharing::Flat,
            (Ok(_), _) => TaskSharing::Tree,
            (Err(_), Ok(_)) => TaskSharing::Flat,
            (Err(tree), Err(flat)) => {
                return Err(Box::new(NeitherFits {
                    task_id,
                    tree: tree.clone(),
                    flat: flat.clone(),
                }));
            }
        };
        Ok(SharingChoice {
            task_id,
            tree,
            flat,
            sharing,
        })
    }

    fn cost(&self, forest: &PrefixForest) -> Result<TaskCost, Unfit> {
        // The same rows and predictions, but no denominator and no inputs that may be missing.
        let options = PackOptions {
            aggregation: Aggregation::Sum,
            loss: LossForm::LogLikelihood,
            ..self.options
        };
        let packs = pack_step(self.trajectories, &[forest], &options)?.packs;
        if let Some(MemoryLimit { bytes, limit }) = self.memory {
            let bytes = bytes(&packs);
            if bytes > limit {
                return Err(Unfit::Memory { bytes, limit });
            }
        }
        let mut work: StepWork = packs
            .iter()
            .map(|pack| StepWork::of_pack(pack, self.recurrent))
            .sum();
        // Parts have their own packs; whole trees share packs with trees of other tasks.
        if packs.iter().all(|pack| pack.gateway.is_none()) {
            let tokens: usize = packs.iter().map(|pack| pack.layout.len()).sum();
            work.packs = tokens as f64 / self.options.token_budget as f64;
        }
        Ok(TaskCost {
            seconds: self.time.seconds(&work),
            work,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree_pack::{Partitioning, build_forests, flat_forests};

    /// A prompt of `shared` tokens and `answers` of 10.
    fn task(shared: u32, answers: u32) -> Vec<Trajectory> {
        let path = |answer: u32| {
            let tokens = (0..shared).chain((0..10).map(|index| 1000 + 10 * answer + index));
            let tokens: Vec<u32> = tokens.collect();
            let mask = vec![true; tokens.len()];
            Trajectory::new("task", answer.to_string(), tokens, mask)
        };
        (0..answers).map(path).collect()
    }

    /// Chooses on a machine on which a row takes 1 s and a past key `past_rows` s.
    fn choose(
        trajectories: &[Trajectory],
        options: PackOptions,
        past_rows: f64,
        memory: Option<MemoryLimit<'_>>,
    ) -> Result<SharingChoice, Box<NeitherFits>> {
        let gate = SharingGate {
            trajectories,
            options,
            time: StepTime::new(StepWork {
                rows: 1.0,
                past_rows,
                ..StepWork::default()
            }),
            recurrent: false,
            memory,
        };
        let tree = build_forests(trajectories).unwrap();
        let flat = flat_forests(trajectories).unwrap();
        gate.choose(&tree[0], &flat[0])
    }

    #[test]
    fn shared_prefixes_are_computed_once_where_that_is_faster() {
        let choice = choose(&task(50, 4), PackOptions::new(100), 0.0, None).unwrap();
        assert_eq!(choice.sharing, TaskSharing::Tree);
        // 90 tokens in place of 240.
        assert_eq!(choice.seconds(), 90.0);
        assert_eq!(choice.predicted_speedup(), Some(240.0 / 90.0));
        assert_eq!(choice.tree.unwrap().work.packs, 0.9);
    }

    #[test]
    fn parts_may_cost_more_than_they_save() {
        let options = PackOptions {
            partitioning: Partitioning::Connected,
            ..PackOptions::new(60)
        };
        let cheap = choose(&task(50, 4), options, 0.0, None).unwrap();
        assert_eq!(cheap.sharing, TaskSharing::Tree);
        let costly = choose(&task(50, 4), options, 10.0, None).unwrap();
        assert_eq!(costly.sharing, TaskSharing::Flat);
        assert!(costly.predicted_speedup().unwrap() < 1.0);
    }

    #[test]
    fn what_does_not_fit_is_not_chosen() {
        let choice = choose(&task(50, 4), PackOptions::new(80), 0.0, None).unwrap();
        assert_eq!(choice.sharing, TaskSharing::Flat);
        assert!(matches!(
            choice.tree,
            Err(Unfit::Pack(PackError::TreeOverBudget { .. }))
        ));
        assert_eq!(
            (choice.seconds(), choice.predicted_speedup()),
            (240.0, None)
        );

        let rows = |packs: &[Pack]| {
            packs
                .iter()
                .map(|pack| pack.layout.len() as u64)
                .max()
                .unwrap()
        };
        let memory = Some(MemoryLimit {
            bytes: &rows,
            limit: 70,
        });
        // Separate trajectories fill packs of 60, the tree one of 90.
        let options = PackOptions::new(100);
        let choice = choose(&task(50, 4), options, 0.0, memory).unwrap();
        assert_eq!(choice.sharing, TaskSharing::Flat);
        let expected = Unfit::Memory {
            bytes: 90,
            limit: 70,
        };
        assert_eq!(choice.tree, Err(expected));

        let error = choose(&task(50, 4), PackOptions::new(55), 0.0, None).unwrap_err();
        assert!(
            error.to_string().contains("\"task\" fits neither as trees"),
            "{error}"
        );
    }

    #[test]
    fn without_anything_to_share_trees_are_chosen() {
        let choice = choose(&task(0, 3), PackOptions::new(30), 0.0, None).unwrap();
        assert_eq!(choice.sharing, TaskSharing::Tree);
        assert_eq!(choice.predicted_speedup(), Some(1.0));
    }
}
