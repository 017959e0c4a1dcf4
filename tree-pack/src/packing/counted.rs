//! The trajectories and forests of a step, with the counts that packing uses.

use std::borrow::Borrow;

use rayon::prelude::*;

use super::error::PackError;
use crate::counting_sort::counting_sort;
use crate::forest::{MAX_ROWS, NOBODY, Node, PrefixForest, Tree};
use crate::objective::StepTotals;
use crate::packs::StepTrajectory;
use crate::trajectory::Trajectory;

/// A tree of a step. Trees are ordered by forest, then by their order in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreeIndex {
    /// Index in [`CountedStep::forests`].
    pub forest: u32,
    /// Index in [`PrefixForest::trees`].
    pub tree: u32,
}

/// The nodes of a tree.
pub struct TreeNodes<'a> {
    pub forest: &'a PrefixForest,
    pub nodes: &'a [Node],
    /// Number of the first node in the forest.
    pub first_node: u32,
    /// Number of trajectories through each node.
    pub trajectories: &'a [u32],
}

/// A step before packing.
pub struct CountedStep<'a> {
    /// The data set.
    pub trajectories: &'a [Trajectory],
    pub forests: Vec<CountedForest<'a>>,
    pub totals: StepTotals,
}

/// A forest of a step.
pub struct CountedForest<'a> {
    pub forest: &'a PrefixForest,
    /// Index in the step of the forest's first trajectory.
    pub first_trajectory: u32,
    /// Trained tokens of each trajectory.
    pub trained: Vec<u32>,
    /// [`PrefixForest::first_trained`] of the merged forest.
    pub first_trained: Vec<u32>,
    /// [`PrefixForest::trajectories_by_node`].
    trajectories_by_node: Vec<u32>,
    /// Trajectories sorted by tree: those of tree `t` are
    /// `members[member_offsets[t]..member_offsets[t + 1]]`.
    members: Vec<u32>,
    member_offsets: Vec<u32>,
}

impl<'a> CountedStep<'a> {
    /// Counts the step.
    ///
    /// # Errors
    /// [`PackError`] if a forest was not built from these trajectories, or if the step has too
    /// many.
    pub fn new<F: Borrow<PrefixForest> + Sync>(
        trajectories: &'a [Trajectory],
        forests: &'a [F],
    ) -> Result<Self, PackError> {
        // Collecting the results first makes the reported error that of the first forest.
        let forests: Vec<_> = forests
            .par_iter()
            .map(|forest| CountedForest::new(trajectories, forest.borrow()))
            .collect();
        let mut forests = forests.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut totals = StepTotals::default();
        for forest in &mut forests {
            forest.first_trajectory = totals.trajectories as u32;
            forest.add_to(&mut totals, trajectories);
            if totals.trajectories > MAX_ROWS as u64 {
                return Err(PackError::TooLarge {
                    what: "trajectories",
                    count: totals.trajectories as usize,
                });
            }
        }
        Ok(Self {
            trajectories,
            forests,
            totals,
        })
    }

    /// All trees, in order.
    pub fn trees(&self) -> impl Iterator<Item = TreeIndex> {
        (0u32..).zip(&self.forests).flat_map(|(forest, counted)| {
            let trees = 0..counted.forest.trees().len() as u32;
            trees.map(move |tree| TreeIndex { forest, tree })
        })
    }

    pub fn forest_of(&self, tree: TreeIndex) -> &CountedForest<'a> {
        &self.forests[tree.forest as usize]
    }

    pub fn tree(&self, tree: TreeIndex) -> &'a Tree {
        &self.forest_of(tree).forest.trees()[tree.tree as usize]
    }

    pub fn nodes_of(&self, tree: TreeIndex) -> TreeNodes<'_> {
        let CountedForest {
            forest,
            trajectories_by_node,
            ..
        } = self.forest_of(tree);
        let numbers = self.tree(tree).nodes.clone();
        let range = numbers.start as usize..numbers.end as usize;
        TreeNodes {
            forest,
            nodes: &forest.nodes()[range.clone()],
            first_node: numbers.start,
            trajectories: &trajectories_by_node[range],
        }
    }

    /// Trajectories with trained tokens, as indices in the data set.
    pub fn trained_trajectories(&self) -> impl Iterator<Item = usize> {
        self.forests.iter().flat_map(|forest| {
            let indices = forest.forest.trajectories().iter().zip(&forest.trained);
            let trained = indices.filter(|&(_, &trained)| trained > 0);
            trained.map(|(&index, _)| index as usize)
        })
    }

    /// The trajectories of the step, in order of its forests.
    pub fn step_trajectories(&self) -> Vec<StepTrajectory> {
        let forests = self.forests.iter().flat_map(|forest| {
            let indices = forest.forest.trajectories().iter().zip(&forest.trained);
            indices.map(|(&data_index, &trained_tokens)| {
                let trajectory = &self.trajectories[data_index as usize];
                StepTrajectory {
                    task_id: trajectory.task_id.clone(),
                    rollout_id: trajectory.rollout_id.clone(),
                    segment: trajectory.segment,
                    data_index,
                    trained_tokens,
                }
            })
        });
        forests.collect()
    }
}

impl<'a> CountedForest<'a> {
    fn new(trajectories: &[Trajectory], forest: &'a PrefixForest) -> Result<Self, PackError> {
        check_origin(trajectories, forest)?;
        let count = forest.trajectories().len();
        let trees = forest.trees().len();
        let (member_offsets, members) = counting_sort(count, trees, 0..count as u32, |number| {
            forest.tree_of(number as usize)
        });
        let trained = |&index: &u32| trajectories[index as usize].trained_tokens() as u32;
        Ok(Self {
            forest,
            first_trajectory: 0,
            trained: forest.trajectories().iter().map(trained).collect(),
            first_trained: forest.merged().first_trained(trajectories),
            trajectories_by_node: forest.trajectories_by_node(),
            members,
            member_offsets,
        })
    }

    /// Trajectories of a tree, as numbers in the forest.
    pub fn members_of(&self, tree: u32) -> &[u32] {
        let tree = tree as usize;
        let [start, end] = [self.member_offsets[tree], self.member_offsets[tree + 1]];
        &self.members[start as usize..end as usize]
    }

    fn add_to(&self, totals: &mut StepTotals, trajectories: &[Trajectory]) {
        let forest = self.forest;
        let trained_once = self.first_trained.iter().filter(|&&first| first != NOBODY);
        totals.trajectories += forest.trajectories().len() as u64;
        totals.rows += forest.tokens().len() as u64;
        totals.unique_tokens += forest.merged().tokens().len() as u64;
        totals.unique_trained_tokens += trained_once.count() as u64;
        for (&index, &trained) in forest.trajectories().iter().zip(&self.trained) {
            let trajectory = &trajectories[index as usize];
            totals.tokens += trajectory.len() as u64;
            totals.trained_tokens += u64::from(trained);
            totals.weighted_trained_tokens += trajectory.weight * f64::from(trained);
        }
    }
}

/// Checks that a forest was built from these trajectories, as far as ids and lengths show.
fn check_origin(trajectories: &[Trajectory], forest: &PrefixForest) -> Result<(), PackError> {
    for (number, &index) in forest.trajectories().iter().enumerate() {
        let end = forest.nodes()[forest.end_node(number) as usize];
        let length = end.position as usize + end.token_count();
        let belongs = trajectories.get(index as usize).is_some_and(|trajectory| {
            trajectory.len() == length
                && trajectory.task_id == forest.task_id()
                && trajectory.validate().is_ok()
        });
        if !belongs {
            return Err(PackError::ForeignForest {
                task_id: forest.task_id().to_owned(),
                index: index as usize,
            });
        }
    }
    Ok(())
}
