//! How trajectories are packed in a test.

use proptest::prelude::*;
use tree_pack::{
    Aggregation, LossForm, Objective, PackOptions, PackedStep, Trajectory, build_forests,
    flat_forests, pack_step,
};

/// Token budget and padding of the packs, and whether prefixes are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packing {
    /// The token budget is this many times the largest tree; everything in one pack if `None`.
    pub budget: Option<f64>,
    /// Rows are padded to a multiple of this.
    pub multiple: usize,
    /// Whether trajectories of a task share their prefixes.
    pub shared: bool,
}

impl Packing {
    /// One pack without padding.
    pub const ONE_PACK: Self = Self {
        budget: None,
        multiple: 1,
        shared: true,
    };

    /// As many packs as there can be, without padding.
    pub const SMALL_PACKS: Self = Self {
        budget: Some(1.0),
        multiple: 1,
        shared: true,
    };

    /// Random budgets and paddings; prefixes are shared.
    pub fn strategy() -> impl Strategy<Value = Self> {
        let budget = prop_oneof![Just(None), (1.0..2.5).prop_map(Some)];
        let multiple = prop_oneof![2 => Just(1), 1 => 2_usize..80];
        (budget, multiple).prop_map(|(budget, multiple)| Self {
            budget,
            multiple,
            shared: true,
        })
    }

    /// Packs the trajectories as one optimizer step, every prediction an occurrence of its own.
    ///
    /// # Panics
    /// If they are refused.
    pub fn pack(
        self,
        trajectories: &[Trajectory],
        objective: Objective,
        aggregation: Aggregation,
    ) -> PackedStep {
        self.pack_for(
            trajectories,
            objective,
            aggregation,
            LossForm::PerTrajectory,
        )
    }

    /// Packs the trajectories as one optimizer step for a form of loss, which decides whether
    /// occurrences are merged.
    ///
    /// # Panics
    /// If they are refused.
    pub fn pack_for(
        self,
        trajectories: &[Trajectory],
        objective: Objective,
        aggregation: Aggregation,
        loss: LossForm,
    ) -> PackedStep {
        let build = if self.shared {
            build_forests
        } else {
            flat_forests
        };
        let forests = build(trajectories).expect("valid trajectories");
        let trees = forests.iter().flat_map(|forest| forest.trees());
        let sizes: Vec<usize> = trees.map(|tree| tree.rows.len()).collect();
        let token_budget = match self.budget {
            None => sizes.iter().sum(),
            Some(factor) => {
                (factor * sizes.iter().copied().max().unwrap_or(0) as f64).ceil() as usize
            }
        };
        let options = PackOptions {
            pad_to_multiple: self.multiple,
            objective,
            aggregation,
            loss,
            ..PackOptions::new(token_budget.max(1))
        };
        pack_step(trajectories, &forests, &options).expect("a valid step")
    }
}
