//! Options of packing.

use super::error::PackError;
use crate::forest::MAX_ROWS;
use crate::objective::{Aggregation, LossForm, Objective};

/// How the trees of an optimizer step are packed and how their predictions are weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackOptions {
    /// Maximum number of tokens in a pack; each tree token counts once. Past keys of a
    /// [`crate::Gateway`] do not count.
    pub token_budget: usize,
    /// Packs are padded to a multiple of this; 1 means no padding. Padding may exceed the budget.
    pub pad_to_multiple: usize,
    /// How shared predictions count.
    pub objective: Objective,
    /// How the sum over predictions is normalised.
    pub aggregation: Aggregation,
    /// What the loss of a prediction depends on.
    pub loss: LossForm,
    /// How trees over the budget are handled.
    pub partitioning: Partitioning,
    /// Number of devices that train the step together ([`crate::assign_to_ranks`]). If there are
    /// enough trees, the number of packs of whole trees is a multiple of it and their sizes are
    /// even.
    pub ranks: usize,
}

impl PackOptions {
    /// Token mean of the negative log-likelihood over all occurrences, no padding, one device; a
    /// tree over the budget is an error.
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

/// How a tree with more tokens than the budget is handled.
///
/// Each part of a partitioned tree is a pack. The packs are in depth-first order of the parts; all
/// but the first have a [`crate::Gateway`] to earlier packs. No token is computed twice, and losses
/// and gradients are those of the whole tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partitioning {
    /// The tree is an error.
    #[default]
    Refuse,
    /// Every part is connected: it has one root. The number of parts is the minimum over all cuts,
    /// including cuts inside nodes.
    Connected,
    /// Connected parts that continue the same part may share a pack, which then has several roots.
    /// There are never more packs than with [`Partitioning::Connected`], and often far fewer; a
    /// bin-packing heuristic chooses the parts of a pack.
    Shared,
    /// Every node of every tree is a part, even in trees within the budget. A baseline to measure
    /// the gain of larger parts.
    PerNode,
    /// Smaller trees without gateways. Each repeats the prefixes that it shares with earlier ones;
    /// the first tree that has the target of a prediction makes it. Losses and gradients are the
    /// same, with more tokens; a path over the budget is an error. A baseline to measure the gain
    /// of gateways.
    RepeatedPrefixes,
}
