//! Partitions of trees over the budget, and their costs.

use anyhow::Result;
use clap::ValueEnum;
use indicatif::HumanCount;
use serde::Serialize;
use tree_pack::{
    PackError, PackOptions, PackedStep, Partitioning, PrefixForest, Trajectory, pack_step,
};

use crate::report::new_table;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartitioningName {
    /// Refuse them with an error.
    Refuse,
    /// Minimum number of connected parts.
    Connected,
    /// Parts that continue the same part may share a pack.
    Shared,
    /// Every node is a part; a baseline.
    PerNode,
    /// Smaller trees that repeat their common prefixes; a baseline.
    RepeatedPrefixes,
}

impl From<PartitioningName> for Partitioning {
    fn from(name: PartitioningName) -> Self {
        match name {
            PartitioningName::Refuse => Self::Refuse,
            PartitioningName::Connected => Self::Connected,
            PartitioningName::Shared => Self::Shared,
            PartitioningName::PerNode => Self::PerNode,
            PartitioningName::RepeatedPrefixes => Self::RepeatedPrefixes,
        }
    }
}

/// Counts of the packs of a step.
#[derive(Clone, Copy, Serialize)]
pub struct PartCounts {
    /// Packs that continue others.
    pub continued_packs: usize,
    /// Rows of all packs, without padding.
    pub rows: usize,
    /// Past keys of all packs: rows of earlier packs that are retained for them.
    pub past_keys: usize,
    /// Maximum number of retained rows: those of a pack and all its ancestors.
    pub retained_tokens: usize,
}

impl PartCounts {
    pub fn of(step: &PackedStep) -> Self {
        let gateways = || step.packs.iter().filter_map(|pack| pack.gateway.as_ref());
        Self {
            continued_packs: gateways().count(),
            rows: step.packs.iter().map(|pack| pack.layout.len()).sum(),
            past_keys: gateways().map(|gateway| gateway.past_keys()).sum(),
            retained_tokens: step.retained_tokens(),
        }
    }
}

/// Counts of all tasks as one step, with one budget and one partitioning.
#[derive(Serialize)]
pub struct BudgetCounts {
    token_budget: usize,
    partitioning: PartitioningName,
    packs: usize,
    #[serde(flatten)]
    counts: PartCounts,
}

/// Counts for each budget and partitioning. Partitionings that cannot satisfy a budget are omitted.
pub fn of_budgets(
    budgets: &[usize],
    forests: &[PrefixForest],
    trajectories: &[Trajectory],
) -> Result<Vec<BudgetCounts>> {
    let names = [
        PartitioningName::Connected,
        PartitioningName::Shared,
        PartitioningName::RepeatedPrefixes,
    ];
    let mut counts = Vec::new();
    for &token_budget in budgets {
        for partitioning in names {
            let options = PackOptions {
                partitioning: partitioning.into(),
                ..PackOptions::new(token_budget)
            };
            let step = match pack_step(trajectories, forests, &options) {
                Err(PackError::PathOverBudget { .. }) => continue,
                step => step?,
            };
            counts.push(BudgetCounts {
                token_budget,
                partitioning,
                packs: step.packs.len(),
                counts: PartCounts::of(&step),
            });
        }
    }
    Ok(counts)
}

pub fn table(budgets: &[BudgetCounts]) -> String {
    let mut table = new_table(&[
        "partitioning",
        "budget",
        "packs",
        "continued",
        "rows",
        "past keys",
        "retained",
    ]);
    for budget in budgets {
        let BudgetCounts {
            token_budget,
            partitioning,
            packs,
            counts,
        } = budget;
        let name = partitioning.to_possible_value();
        let mut row = vec![name.map_or(String::new(), |name| name.get_name().to_owned())];
        let numbers = [
            *token_budget,
            *packs,
            counts.continued_packs,
            counts.rows,
            counts.past_keys,
            counts.retained_tokens,
        ];
        row.extend(numbers.map(|count| HumanCount(count as u64).to_string()));
        table.add_row(row);
    }
    format!(
        "All tasks as one step. Retained: the largest number of rows of a pack and all packs that it \
         continues.\n{table}\n"
    )
}
