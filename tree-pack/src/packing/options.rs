//! Options of packing.

use super::error::PackError;
use crate::forest::MAX_ROWS;
use crate::objective::{Aggregation, LossForm, Objective};

/// How the trees of an optimizer step are packed and what is trained on them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackOptions {
    /// Most tokens in a pack, each tree token counting once. Past keys of a [`crate::Gateway`] do
    /// not count.
    pub token_budget: usize,
    /// Packs are padded to a multiple of this; 1 means no padding. Padding may exceed the budget.
    pub pad_to_multiple: usize,
    /// How shared predictions count.
    pub objective: Objective,
    /// How their sum is normalised.
    pub aggregation: Aggregation,
    /// On what the loss of a prediction depends.
    pub loss: LossForm,
    /// What becomes of trees over the budget.
    pub partitioning: Partitioning,
    /// Devices that will train the packs of the step together ([`crate::assign_to_ranks`]). The
    /// number of packs of whole trees is a multiple of it, and their sizes are even, as far as the
    /// trees allow.
    pub ranks: usize,
}

impl PackOptions {
    /// Token mean of the negative log-likelihood over all occurrences, no padding, one device;
    /// trees over the budget are refused.
    pub fn new(token_budget: usize) -> Self {
        Self {
            token_budget,
            pad_to_multiple: 1,
            objective: Objective::default(),
            aggregation: Aggregation::TokenMean,
            loss: LossForm::default(),
            partitioning: Partitioning::default(),
            ranks: 1,
        }
    }

    /// Checks that every number is in range.
    pub(super) fn validate(&self) -> Result<(), PackError> {
        for (option, value) in [
            ("token_budget", self.token_budget),
            ("pad_to_multiple", self.pad_to_multiple),
            ("ranks", self.ranks),
        ] {
            if value == 0 || value > MAX_ROWS {
                let expected = format!("1 to {MAX_ROWS}");
                return Err(PackError::Option {
                    option,
                    value,
                    expected,
                });
            }
        }
        let longest = self
            .token_budget
            .checked_next_multiple_of(self.pad_to_multiple);
        if longest.is_none_or(|longest| longest > MAX_ROWS) {
            return Err(PackError::Option {
                option: "token_budget",
                value: self.token_budget,
                expected: format!(
                    "at most {MAX_ROWS} after padding to a multiple of {}",
                    self.pad_to_multiple
                ),
            });
        }
        Ok(())
    }
}

/// What becomes of a tree with more tokens than fit a pack.
///
/// A tree in parts has packs of its own, in depth-first order of the parts; each but the first
/// has a [`crate::Gateway`] to the packs before it. Nothing is computed twice, and losses and
/// gradients are those of the whole tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partitioning {
    /// It is an error.
    #[default]
    Refuse,
    /// Parts are connected: each has one root. As few of them as possible, cut wherever that
    /// takes the fewest, inside of nodes, too.
    Connected,
    /// Parts that continue rows of the same part may become one, which has several roots. Never
    /// more parts than connected, and often far fewer: filling them is bin packing, done by a
    /// heuristic.
    Shared,
    /// Every node of every tree is a part of its own, also of trees within the budget. To measure
    /// what larger parts save.
    PerNode,
    /// Smaller trees without gateways: each repeats the rows of the prefixes that it has in common
    /// with those before, and every prediction is made in the first that has its target. Computes
    /// the same losses and gradients with more tokens; a path over the budget is an error. To
    /// measure what gateways save.
    RepeatedPrefixes,
}
