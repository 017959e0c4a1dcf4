//! Packing of trajectories in tests.

use proptest::prelude::*;
use tree_pack::{
    Aggregation, LossForm, Objective, PackOptions, PackedStep, Trajectory, build_forests,
    flat_forests, pack_step,
};

/// Token budget and padding of the packs, and whether prefixes are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packing {
    /// The token budget as a multiple of the largest tree; `None` packs everything into one pack.
    pub budget: Option<f64>,
    /// Rows are padded to a multiple of this.
    pub multiple: usize,
    /// Whether prefixes are shared.
    pub shared: bool,
}

impl Packing {
    /// One pack without padding.
    pub const ONE_PACK: Self = Self {
        budget: None,
        multiple: 1,
        shared: true,
    };

    /// As many packs as possible, without padding.
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

    /// Packs the trajectories as one optimizer step, with a separate occurrence for every
    /// prediction.
    ///
    /// # Panics
    /// If packing fails.
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

    /// Packs the trajectories as one optimizer step for a loss form, which determines whether
    /// occurrences are merged.
    ///
    /// # Panics
    /// If packing fails.
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
