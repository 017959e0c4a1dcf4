//! Whether a task is computed as trees or as separate trajectories: what is predicted to be faster,
//! of what fits.
//!
//! Loss and gradients are the same either way. A step may have tasks of both kinds:
//! [`pack_step`] takes the merged forest of one task and the flat forest of another.

use thiserror::Error;
use tree_pack::{
    Aggregation, LossForm, Pack, PackError, PackOptions, PrefixForest, Trajectory, pack_step,
};

use crate::{StepTime, StepWork};

/// How a task is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskForm {
    /// Prefixes that trajectories have in common are computed once.
    Tree,
    /// Every trajectory is computed by itself.
    Flat,
}

/// What a task takes in one form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FormCost {
    /// What is computed. Of a pack that other tasks are in, too, the share of the task counts.
    pub work: StepWork,
    /// Seconds that are predicted for it.
    pub seconds: f64,
}

/// Why a task cannot be computed in one form.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Unfit {
    /// It cannot be packed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// Its packs need too much memory.
    #[error("its packs need {bytes} bytes of memory, more than {limit}")]
    Memory {
        /// What they need.
        bytes: u64,
        /// What there is.
        limit: u64,
    },
}

/// A task that cannot be computed at all.
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

/// What was decided about a task, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct SharingChoice {
    /// The task.
    pub task_id: String,
    /// What it takes as trees.
    pub tree: Result<FormCost, Unfit>,
    /// What it takes as separate trajectories.
    pub flat: Result<FormCost, Unfit>,
    /// The form that fits, or the faster one if both do; trees if there is no difference.
    pub form: TaskForm,
}

impl SharingChoice {
    /// Seconds that are predicted for the form that was chosen.
    pub fn seconds(&self) -> f64 {
        let chosen = match self.form {
            TaskForm::Tree => &self.tree,
            TaskForm::Flat => &self.flat,
        };
        chosen.as_ref().map_or(f64::NAN, |cost| cost.seconds)
    }

    /// How many times faster trees are than separate trajectories, as predicted; `None` if one of
    /// the two does not fit.
    pub fn predicted_speedup(&self) -> Option<f64> {
        let (Ok(tree), Ok(flat)) = (&self.tree, &self.flat) else {
            return None;
        };
        Some(flat.seconds / tree.seconds)
    }
}

/// Memory that packs may take.
#[derive(Clone, Copy)]
pub struct MemoryLimit<'a> {
    /// Estimates the bytes that a step of these packs needs at its peak.
    pub bytes: &'a dyn Fn(&[Pack]) -> u64,
    /// Most that it may need.
    pub limit: u64,
}

/// Decides task by task.
pub struct SharingGate<'a> {
    /// The data that forests are made from.
    pub trajectories: &'a [Trajectory],
    /// How steps are packed.
    pub options: PackOptions,
    /// What work takes on this machine.
    pub time: StepTime,
    /// Whether the model has recurrent layers.
    pub recurrent: bool,
    /// The memory that there is, if it is to be regarded.
    pub memory: Option<MemoryLimit<'a>>,
}

impl SharingGate<'_> {
    /// Decides about one task, given by its forest of trees (of [`tree_pack::build_forests`]) and
    /// that of separate trajectories (of [`tree_pack::flat_forests`]).
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
        let form = match (&tree, &flat) {
            (Ok(tree), Ok(flat)) if flat.seconds < tree.seconds => TaskForm::Flat,
            (Ok(_), _) => TaskForm::Tree,
            (Err(_), Ok(_)) => TaskForm::Flat,
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
            form,
        })
    }

    fn cost(&self, forest: &PrefixForest) -> Result<FormCost, Unfit> {
        // The same rows and predictions, without a denominator or inputs that may not be there yet.
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
        // Parts have packs of their own; whole trees share them with those of other tasks.
        if packs.iter().all(|pack| pack.gateway.is_none()) {
            let tokens: usize = packs.iter().map(|pack| pack.layout.len()).sum();
            work.packs = tokens as f64 / self.options.token_budget as f64;
        }
        Ok(FormCost {
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

    /// A machine on which a row takes 1 s and a row of an earlier pack `past` s.
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
        assert_eq!(choice.form, TaskForm::Tree);
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
        assert_eq!(cheap.form, TaskForm::Tree);
        let costly = choose(&task(50, 4), options, 10.0, None).unwrap();
        assert_eq!(costly.form, TaskForm::Flat);
        assert!(costly.predicted_speedup().unwrap() < 1.0);
    }

    #[test]
    fn what_does_not_fit_is_not_chosen() {
        let choice = choose(&task(50, 4), PackOptions::new(80), 0.0, None).unwrap();
        assert_eq!(choice.form, TaskForm::Flat);
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
        assert_eq!(choice.form, TaskForm::Flat);
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
        assert_eq!(choice.form, TaskForm::Tree);
        assert_eq!(choice.predicted_speedup(), Some(1.0));
    }
}
