//! Upper bounds on the speed-up of a step on trees over the same step on separate trajectories.
//!
//! There are two bounds, from the same counts. The **token bound** compares tokens: `N_flat /
//! N_tree = 1 / (1 - POR)`. The **step bound** compares the floating-point operations of the whole
//! step, because two terms do not shrink in proportion to the tokens: the visible (query, key)
//! pairs of attention, and the rows projected onto the vocabulary. All programs and benchmarks
//! compute both with [`StepBound::new`].

use std::iter::Sum;
use std::ops::Add;

use tree_pack::Pack;

/// The quantities that the operations of a step depend on. Counts of packs and steps are additive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// Tokens that pass through the blocks, without padding.
    pub tokens: u64,
    /// (query, key) pairs of one attention head in which the key is visible to the query.
    pub visible_pairs: u64,
    /// Rows projected onto the vocabulary: those that predict at least one target.
    pub projected_rows: u64,
    /// Predictions in the loss.
    pub predictions: u64,
}

impl StepCounts {
    /// Counts one pack, without padding.
    pub fn of_pack(pack: &Pack) -> Self {
        Self {
            tokens: pack.layout.len() as u64,
            visible_pairs: pack.layout.visible_pairs(),
            projected_rows: pack.occurrences.distinct_rows() as u64,
            predictions: pack.occurrences.rows.len() as u64,
        }
    }

    /// Counts all packs of a step.
    pub fn of_packs<'a>(packs: impl IntoIterator<Item = &'a Pack>) -> Self {
        packs.into_iter().map(Self::of_pack).sum()
    }
}

impl Add for StepCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            visible_pairs: self.visible_pairs + other.visible_pairs,
            projected_rows: self.projected_rows + other.projected_rows,
            predictions: self.predictions + other.predictions,
        }
    }
}

impl Sum for StepCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}

/// The model sizes that determine the cost of a token, a visible pair and a projected row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCost {
    /// Parameters of the matrices in the blocks that one token is multiplied with, low-rank
    /// adapters included. In a mixture of experts: the router and the chosen experts.
    pub trunk_parameters: u64,
    /// The number of these parameters that receive a gradient.
    pub trained_trunk_parameters: u64,
    /// Sum over attention layers of `query_heads * (head_dim + value_dim)`: multiplications per
    /// visible pair in the forward pass.
    pub attention_width: u64,
    /// Sum over recurrent layers of `3 * value_heads * key_dim * value_dim`: multiply-adds per
    /// token in the forward pass (read the state with the key, add an outer product, read it with
    /// the query). Convolutions count as matrices.
    pub recurrence_width: u64,
    /// Entries of the language-model head, `vocab * hidden`.
    pub head_parameters: u64,
    /// Whether the head receives a gradient.
    pub head_trained: bool,
}

impl ModelCost {
    /// Model FLOPs of the forward and backward pass: a multiply-add counts as two operations.
    /// Recomputation in an implementation, such as attention and head probabilities in the backward
    /// pass, is not counted.
    ///
    /// A matrix costs `2` operations per parameter and token in the forward pass, `2` for the
    /// gradient of its input, and `2` for its own gradient if it is trained.
    pub fn step_flops(&self, counts: &StepCounts) -> f64 {
        let trunk = 4.0 * self.trunk_parameters as f64 + 2.0 * self.trained_trunk_parameters as f64;
        let head_factor = if self.head_trained { 6.0 } else { 4.0 };
        let head = head_factor * self.head_parameters as f64;
        // Both factors of QK^T and of PV need a gradient: three times the forward pass.
        let pair = 6.0 * self.attention_width as f64;
        // All three products of a recurrence have two factors with a gradient, too.
        let recurrence = 6.0 * self.recurrence_width as f64;
        counts.tokens as f64 * (trunk + recurrence)
            + counts.visible_pairs as f64 * pair
            + counts.projected_rows as f64 * head
    }
}

/// The two upper bounds on the speed-up of a step on trees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepBound {
    /// Prefix overlap ratio by tokens, `1 - N_tree / N_flat`.
    pub por: f64,
    /// `N_flat / N_tree`.
    pub token_bound: f64,
    /// FLOPs of the flat step over those of the tree step.
    pub step_bound: f64,
    /// FLOPs of the step on trees.
    pub tree_flops: f64,
    /// FLOPs of the step on separate trajectories.
    pub flat_flops: f64,
}

impl StepBound {
    /// Compares the same trajectories packed as trees and packed separately. `None` if the trees
    /// have no tokens.
    ///
    /// ```
    /// use burn_tree_train::{ModelCost, StepBound, StepCounts};
    ///
    /// // Two trajectories of 3 tokens that share 2; each trains its last token.
    /// let flat = StepCounts { tokens: 6, visible_pairs: 12, projected_rows: 2, predictions: 2 };
    /// let tree = StepCounts { tokens: 4, visible_pairs: 9, projected_rows: 1, predictions: 2 };
    /// let model = ModelCost {
    ///     trunk_parameters: 1000,
    ///     trained_trunk_parameters: 1000,
    ///     attention_width: 64,
    ///     recurrence_width: 0,
    ///     head_parameters: 500,
    ///     head_trained: true,
    /// };
    /// let bound = StepBound::new(&model, &tree, &flat).unwrap();
    /// assert_eq!(bound.token_bound, 1.5);
    /// assert!(bound.step_bound > 1.53 && bound.step_bound < 1.54);
    /// ```
    pub fn new(model: &ModelCost, tree: &StepCounts, flat: &StepCounts) -> Option<Self> {
        if tree.tokens == 0 || flat.tokens == 0 {
            return None;
        }
        let (tree_flops, flat_flops) = (model.step_flops(tree), model.step_flops(flat));
        Some(Self {
            por: 1.0 - tree.tokens as f64 / flat.tokens as f64,
            token_bound: flat.tokens as f64 / tree.tokens as f64,
            step_bound: flat_flops / tree_flops,
            tree_flops,
            flat_flops,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree_pack::{Occurrences, TreeLayout};

    /// Rows `0-1-{2, 3}`: a prefix of two tokens and two branches of one.
    fn fork() -> Pack {
        Pack {
            layout: TreeLayout {
                tokens: vec![5, 6, 7, 8],
                position_ids: vec![0, 1, 2, 2],
                parents: vec![-1, 0, 1, 1],
                subtree_ends: vec![4, 4, 3, 4],
                segments: vec![],
            },
            occurrences: Occurrences {
                rows: vec![0, 1, 1],
                targets: vec![6, 7, 8],
                ..Occurrences::default()
            },
            padded_len: 8,
            task_ids: vec!["fork".into()],
            trajectory_counts: vec![2, 2, 1, 1],
            ..Pack::default()
        }
    }

    const MODEL: ModelCost = ModelCost {
        trunk_parameters: 10,
        trained_trunk_parameters: 10,
        attention_width: 3,
        recurrence_width: 5,
        head_parameters: 7,
        head_trained: true,
    };

    #[test]
    fn counts_rows_that_predict_once_and_leave_padding_out() {
        let counts = StepCounts::of_packs([&fork(), &fork()]);
        assert_eq!(
            counts,
            StepCounts {
                tokens: 8,
                visible_pairs: 18,
                projected_rows: 4,
                predictions: 6
            }
        );
    }

    #[test]
    fn flops_are_three_forward_passes_when_everything_is_trained() {
        let counts = StepCounts::of_pack(&fork());
        // Forward: 2 per parameter and token, and 2 per multiplication of a visible pair or a
        // state.
        let forward = 2 * (4 * (10 + 5) + 9 * 3 + 2 * 7);
        assert_eq!(MODEL.step_flops(&counts), f64::from(3 * forward));
    }

    #[test]
    fn frozen_matrices_cost_no_weight_gradient() {
        let counts = StepCounts::of_pack(&fork());
        let frozen = ModelCost {
            trained_trunk_parameters: 0,
            head_trained: false,
            ..MODEL
        };
        let saved = MODEL.step_flops(&counts) - frozen.step_flops(&counts);
        assert_eq!(saved, f64::from(2 * (4 * 10 + 2 * 7)));
    }

    #[test]
    fn step_bound_reaches_the_token_bound_when_every_term_shrinks_alike() {
        let tree = StepCounts {
            tokens: 10,
            visible_pairs: 20,
            projected_rows: 3,
            predictions: 3,
        };
        let flat = StepCounts {
            tokens: 40,
            visible_pairs: 80,
            projected_rows: 12,
            predictions: 12,
        };
        let bound = StepBound::new(&MODEL, &tree, &flat).unwrap();
        assert_eq!(
            (bound.por, bound.token_bound, bound.step_bound),
            (0.75, 4.0, 4.0)
        );
    }

    #[test]
    fn no_tokens_no_bound() {
        let counts = StepCounts::of_pack(&fork());
        assert_eq!(
            StepBound::new(&MODEL, &StepCounts::default(), &counts),
            None
        );
    }
}
