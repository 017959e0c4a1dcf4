//! The original predictions of a pack, as parallel columns.

mod validate;

pub use self::validate::ColumnError;
use crate::forest::{NOBODY, PrefixForest};
use crate::objective::{Coefficients, LossForm, Objective};
use crate::trajectory::Trajectory;

/// Original predictions (or, where the objective merges them, one entry per distinct
/// `(row, target)`), stored as columns of equal length in ascending order of row.
///
/// The loss of an optimizer step is `sum_i weights[i] * nll_i` over all its packs: the
/// denominator of the aggregation is already inside `weights`, and the advantage, too, under
/// [`LossForm::AdvantageWeighted`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Occurrences {
    /// The form of loss that they were made for: decides what was merged.
    pub loss_form: LossForm,
    /// Row whose hidden state makes the prediction.
    pub rows: Vec<u32>,
    /// Token id predicted.
    pub targets: Vec<u32>,
    /// Coefficient of this negative log-likelihood in the loss of the whole step.
    pub weights: Vec<f64>,
    /// Number of original predictions that the entry stands for: 1 unless several are merged.
    /// Under [`Objective::Unique`] a tree token is one prediction.
    pub multiplicities: Vec<u32>,
    /// Index of the trajectory in the step (the first one, where several are merged).
    pub trajectories: Vec<u32>,
    /// Index of the target in its trajectory.
    pub token_indices: Vec<u32>,
    /// Advantage, if the loss uses inputs and the trajectories carry one.
    pub advantages: Option<Vec<f32>>,
    /// Log-probability under the policy before the updates, if used and given.
    pub old_log_probs: Option<Vec<f32>>,
    /// Log-probability under the reference policy, if used and given.
    pub ref_log_probs: Option<Vec<f32>>,
    /// Log-probability that the inference engine reported, if used and given.
    pub sampling_log_probs: Option<Vec<f32>>,
}

impl Occurrences {
    /// Number of occurrences.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nothing is trained.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Number of rows that predict something.
    pub fn distinct_rows(&self) -> usize {
        let repeated = self.rows.windows(2).filter(|pair| pair[0] == pair[1]);
        self.rows.len() - repeated.count()
    }

    fn new(loss_form: LossForm, inputs: Inputs) -> Self {
        Self {
            loss_form,
            advantages: inputs.advantage.then(Vec::new),
            old_log_probs: inputs.old_log_prob.then(Vec::new),
            ref_log_probs: inputs.ref_log_prob.then(Vec::new),
            sampling_log_probs: inputs.sampling_log_prob.then(Vec::new),
            ..Self::default()
        }
    }

    /// No entries, of the same columns.
    pub(crate) fn without_entries(&self) -> Self {
        let like = |column: &Option<Vec<f32>>| column.as_ref().map(|_| Vec::new());
        Self {
            loss_form: self.loss_form,
            advantages: like(&self.advantages),
            old_log_probs: like(&self.old_log_probs),
            ref_log_probs: like(&self.ref_log_probs),
            sampling_log_probs: like(&self.sampling_log_probs),
            ..Self::default()
        }
    }

    /// Appends an entry of another one with the same columns, made from another row.
    pub(crate) fn push_entry_of(&mut self, other: &Self, entry: usize, row: u32) {
        self.rows.push(row);
        self.targets.push(other.targets[entry]);
        self.weights.push(other.weights[entry]);
        self.multiplicities.push(other.multiplicities[entry]);
        self.trajectories.push(other.trajectories[entry]);
        self.token_indices.push(other.token_indices[entry]);
        for (column, values) in [
            (&mut self.advantages, &other.advantages),
            (&mut self.old_log_probs, &other.old_log_probs),
            (&mut self.ref_log_probs, &other.ref_log_probs),
            (&mut self.sampling_log_probs, &other.sampling_log_probs),
        ] {
            if let (Some(column), Some(values)) = (column, values) {
                column.push(values[entry]);
            }
        }
    }

    /// Lengthens the filled-in-place columns to that of `rows`.
    fn fill_up(&mut self) {
        let length = self.rows.len();
        self.weights.resize(length, 0.0);
        self.multiplicities.resize(length, 0);
        self.trajectories.resize(length, NOBODY);
        self.token_indices.resize(length, 0);
        let inputs = [
            &mut self.advantages,
            &mut self.old_log_probs,
            &mut self.ref_log_probs,
            &mut self.sampling_log_probs,
        ];
        for column in inputs.into_iter().flatten() {
            column.resize(length, 0.0);
        }
    }
}

/// Which inputs the occurrences of a step carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inputs {
    pub advantage: bool,
    pub old_log_prob: bool,
    pub ref_log_prob: bool,
    pub sampling_log_prob: bool,
}

/// The value of each input of an occurrence, `None` for those not carried.
pub(crate) type InputValues = [Option<f32>; 4];

/// Names of [`InputValues`], as in JSON.
pub(crate) const INPUT_NAMES: [&str; 4] = ["advantage", "old_logps", "ref_logps", "sampling_logps"];

impl Inputs {
    pub(crate) fn of(self, trajectory: &Trajectory, index: usize) -> InputValues {
        [
            self.advantage
                .then(|| trajectory.advantage_of(index))
                .flatten(),
            self.old_log_prob
                .then(|| trajectory.old_log_prob_of(index))
                .flatten(),
            self.ref_log_prob
                .then(|| trajectory.ref_log_prob_of(index))
                .flatten(),
            self.sampling_log_prob
                .then(|| trajectory.sampling_log_prob_of(index))
                .flatten(),
        ]
    }
}

/// What is the same for all occurrences of a step.
#[derive(Clone, Copy)]
pub(crate) struct StepRules<'a> {
    pub trajectories: &'a [Trajectory],
    pub objective: Objective,
    pub loss: LossForm,
    pub coefficients: Coefficients,
    pub inputs: Inputs,
    /// Whether occurrences of a `(row, target)` become one.
    pub merge: bool,
}

/// A forest as part of a step.
pub(crate) struct StepForest<'a> {
    pub forest: &'a PrefixForest,
    /// Index in the step of its first trajectory.
    pub first_trajectory: u32,
    /// Trained tokens of each trajectory.
    pub trained: Vec<u32>,
    /// [`PrefixForest::first_trained`] of the merged forest.
    pub first_trained: Vec<u32>,
    /// [`PrefixForest::trajectories_by_node`].
    pub trajectories_by_node: Vec<u32>,
    /// Its trajectories by tree: those of tree `t` are `members[offsets[t]..offsets[t + 1]]`.
    pub members: Vec<u32>,
    /// See `members`.
    pub member_offsets: Vec<u32>,
}

impl StepForest<'_> {
    fn members_of(&self, tree: usize) -> &[u32] {
        let [start, end] = [self.member_offsets[tree], self.member_offsets[tree + 1]];
        &self.members[start as usize..end as usize]
    }

    /// Calls `visit(row, trajectory number, token index)` for every prediction of a tree that
    /// counts, by trajectory; `row` is that of the target in the forest.
    fn for_each_prediction(
        &self,
        rules: &StepRules,
        tree: usize,
        mut visit: impl FnMut(usize, usize, usize),
    ) {
        let merged = self.forest.merged();
        for &number in self.members_of(tree) {
            let trajectory =
                &rules.trajectories[self.forest.trajectories()[number as usize] as usize];
            let chain_start = self.forest.is_flat().then(|| {
                let end_node = self.forest.end_node(number as usize);
                self.forest.nodes()[end_node as usize].start as usize
            });
            merged.for_each_trained(
                number as usize,
                &trajectory.loss_mask,
                |merged_row, index| {
                    let counts = rules.objective != Objective::Unique
                        || self.first_trained[merged_row] == number;
                    if counts {
                        let row = chain_start.map_or(merged_row, |start| start + index);
                        visit(row, number as usize, index);
                    }
                },
            );
        }
    }

    /// Appends the occurrences of a tree whose first row is `first_row` in the pack.
    fn append_tree(
        &self,
        rules: &StepRules,
        tree: usize,
        first_row: u32,
        columns: &mut Occurrences,
    ) {
        let rows = &self.forest.trees()[tree].rows;
        let tree_start = rows.start as usize;
        let mut slots = vec![0u32; rows.len()];
        self.for_each_prediction(rules, tree, |row, _, _| slots[row - tree_start] += 1);
        self.reserve_slots(rules.merge, tree, first_row, &mut slots, columns);
        columns.fill_up();
        self.for_each_prediction(rules, tree, |row, number, index| {
            let slot = slots[row - tree_start] as usize;
            let data_index = self.forest.trajectories()[number] as usize;
            let trajectory = &rules.trajectories[data_index];
            let mut weight = rules
                .coefficients
                .of(self.trained[number], trajectory.weight);
            if rules.loss == LossForm::AdvantageWeighted {
                weight *= f64::from(trajectory.advantage_of(index).unwrap_or_default());
            }
            columns.weights[slot] += weight;
            columns.multiplicities[slot] += 1;
            if columns.trajectories[slot] == NOBODY {
                columns.trajectories[slot] = self.first_trajectory + number as u32;
                columns.token_indices[slot] = index as u32;
                let [advantage, old, reference, sampling] = rules.inputs.of(trajectory, index);
                set(&mut columns.advantages, slot, advantage);
                set(&mut columns.old_log_probs, slot, old);
                set(&mut columns.ref_log_probs, slot, reference);
                set(&mut columns.sampling_log_probs, slot, sampling);
            }
            if !rules.merge {
                slots[row - tree_start] += 1;
            }
        });
    }

    /// Turns the number of predictions of each target row into the place of its first one, in
    /// ascending order of the predicting row, and fills in the columns `rows` and `targets`.
    fn reserve_slots(
        &self,
        merge: bool,
        tree: usize,
        first_row: u32,
        slots: &mut [u32],
        columns: &mut Occurrences,
    ) {
        let tree = &self.forest.trees()[tree];
        let mut reserve = |predicting: u32, target: u32| {
            let slot = &mut slots[(target - tree.rows.start) as usize];
            let count = if merge { (*slot).min(1) } else { *slot } as usize;
            *slot = columns.rows.len() as u32;
            let row = predicting - tree.rows.start + first_row;
            columns.rows.extend(std::iter::repeat_n(row, count));
            let token = self.forest.tokens()[target as usize];
            columns.targets.extend(std::iter::repeat_n(token, count));
        };
        for number in tree.nodes.clone() {
            let node = self.forest.nodes()[number as usize];
            for row in node.start..node.end - 1 {
                reserve(row, row + 1);
            }
            for child in self.forest.children(number) {
                reserve(node.end - 1, self.forest.nodes()[child as usize].start);
            }
        }
    }
}

fn set(column: &mut Option<Vec<f32>>, slot: usize, value: Option<f32>) {
    if let (Some(column), Some(value)) = (column, value) {
        column[slot] = value;
    }
}

/// The occurrences of a pack of trees, each given as a forest and an index of its trees.
pub(crate) fn occurrences_of(
    rules: &StepRules,
    forests: &[StepForest],
    trees: &[(u32, u32)],
) -> Occurrences {
    let mut columns = Occurrences::new(rules.loss, rules.inputs);
    let mut first_row = 0;
    for &(forest, tree) in trees {
        let forest = &forests[forest as usize];
        forest.append_tree(rules, tree as usize, first_row, &mut columns);
        first_row += forest.forest.trees()[tree as usize].rows.len() as u32;
    }
    columns
}
