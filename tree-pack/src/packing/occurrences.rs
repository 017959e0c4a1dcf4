//! The occurrences of the trees of a pack.

use super::counted::{CountedForest, CountedStep, TreeIndex};
use super::rules::StepRules;
use crate::forest::{NOBODY, Tree};
use crate::objective::{LossForm, Objective};
use crate::occurrences::Occurrences;
use crate::trajectory::Trajectory;

/// The occurrences of trees that are laid out one after another.
pub fn occurrences_of(step: &CountedStep, rules: &StepRules, trees: &[TreeIndex]) -> Occurrences {
    let mut columns = Occurrences::new(rules.loss, rules.inputs);
    let mut first_row = 0;
    for &index in trees {
        let tree = step.tree(index);
        let predictions = TreePredictions {
            trajectories: step.trajectories,
            forest: step.forest_of(index),
            rules,
            tree,
            members: step.forest_of(index).members_of(index.tree),
        };
        predictions.append_to(&mut columns, first_row);
        first_row += tree.rows.len() as u32;
    }
    columns
}

/// The original predictions of a tree.
struct TreePredictions<'a> {
    trajectories: &'a [Trajectory],
    forest: &'a CountedForest<'a>,
    rules: &'a StepRules,
    tree: &'a Tree,
    /// Trajectories of the tree, as numbers in the forest.
    members: &'a [u32],
}

impl TreePredictions<'_> {
    /// Appends the occurrences of the tree, whose first row in the pack is `first_row`.
    fn append_to(&self, columns: &mut Occurrences, first_row: u32) {
        let Self {
            forest,
            rules,
            tree,
            ..
        } = *self;
        let tree_start = tree.rows.start as usize;
        let mut slots = vec![0u32; tree.rows.len()];
        self.for_each(|row, _, _| slots[row - tree_start] += 1);
        self.reserve_slots(first_row, &mut slots, columns);
        columns.fill_up();
        self.for_each(|row, number, index| {
            let slot = slots[row - tree_start] as usize;
            let trajectory = self.trajectory(number);
            let mut weight = rules
                .coefficients
                .of(forest.trained[number], trajectory.weight);
            if rules.loss == LossForm::AdvantageWeighted {
                weight *= f64::from(trajectory.advantage_of(index).unwrap_or_default());
            }
            columns.weights[slot] += weight;
            columns.multiplicities[slot] += 1;
            if columns.trajectories[slot] == NOBODY {
                columns.trajectories[slot] = forest.first_trajectory + number as u32;
                columns.token_indices[slot] = index as u32;
                columns.set_inputs(slot, rules.inputs.of(trajectory, index));
            }
            if !rules.merge {
                slots[row - tree_start] += 1;
            }
        });
    }

    fn trajectory(&self, number: usize) -> &Trajectory {
        &self.trajectories[self.forest.forest.trajectories()[number] as usize]
    }

    /// Calls `visit(row, trajectory number, token index)` for every prediction that counts, one
    /// trajectory after another; `row` is the target's row in the forest.
    fn for_each(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let CountedForest {
            forest,
            ref first_trained,
            ..
        } = *self.forest;
        let merged = forest.merged();
        for &number in self.members {
            let chain_start = forest.is_flat().then(|| {
                let end_node = forest.end_node(number as usize);
                forest.nodes()[end_node as usize].start as usize
            });
            let loss_mask = &self.trajectory(number as usize).loss_mask;
            merged.for_each_trained(number as usize, loss_mask, |merged_row, index| {
                let counts = self.rules.objective != Objective::Unique
                    || first_trained[merged_row] == number;
                if counts {
                    let row = chain_start.map_or(merged_row, |start| start + index);
                    visit(row, number as usize, index);
                }
            });
        }
    }

    /// Replaces the number of predictions of each target row by the index of its first entry, in
    /// ascending order of the predicting row, and fills in the columns `rows` and `targets`.
    fn reserve_slots(&self, first_row: u32, slots: &mut [u32], columns: &mut Occurrences) {
        let (tree, forest) = (self.tree, self.forest.forest);
        let mut reserve = |predicting: u32, target: u32| {
            let slot = &mut slots[(target - tree.rows.start) as usize];
            let count = if self.rules.merge {
                (*slot).min(1)
            } else {
                *slot
            } as usize;
            *slot = columns.rows.len() as u32;
            let row = predicting - tree.rows.start + first_row;
            columns.rows.extend(std::iter::repeat_n(row, count));
            let token = forest.tokens()[target as usize];
            columns.targets.extend(std::iter::repeat_n(token, count));
        };
        for number in tree.nodes.clone() {
            let node = forest.nodes()[number as usize];
            for row in node.start..node.end - 1 {
                reserve(row, row + 1);
            }
            for child in forest.children(number) {
                reserve(node.end - 1, forest.nodes()[child as usize].start);
            }
        }
    }
}
