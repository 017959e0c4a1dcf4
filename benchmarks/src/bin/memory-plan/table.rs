//! The table of pack sizes by memory.

use std::num::NonZeroU64;

use anyhow::Result;
use burn_tree_models::ModelConfig;
use burn_tree_models::ModelSize;
use burn_tree_trainer::memory::{MemoryOptions, largest_budget};
use burn_tree_trainer::report::{grouped, table};
use clap::Args;

/// Options of the table.
#[derive(Args, Debug)]
pub struct Options {
    /// Built-in configurations.
    #[arg(long, value_delimiter = ',', default_values_t = ["0.6b", "4b"].map(String::from))]
    models: Vec<String>,
    /// Vocabulary size.
    #[arg(long, default_value_t = 151_936)]
    vocab: usize,
    /// Memory sizes in GB (10^9 bytes).
    #[arg(long, value_name = "GB", value_delimiter = ',', default_values_t = [16, 24, 80, 141])]
    memory: Vec<u64>,
    /// Memory in GB not available to the run: device context, kernels, fragmentation.
    #[arg(long, value_name = "GB", default_value_t = 1.5)]
    reserve: f64,
    /// Rank of the adapters, in the rows with adapters.
    #[arg(long, default_value = "16")]
    lora_rank: NonZeroU64,
    /// Bytes of a value in the forward and backward pass: 2 for bfloat16, 4 for f32.
    #[arg(long, default_value_t = 2)]
    compute_bytes: u64,
    /// Rows projected on the vocabulary at a time.
    #[arg(long, value_name = "ROWS", default_value_t = 1024)]
    head_chunk_rows: u64,
    /// Packs in memory at the same time: parts of a partitioned tree from its root to a leaf.
    #[arg(long, default_value = "1")]
    parts: NonZeroU64,
}

/// Prints the table.
pub fn print(options: &Options) -> Result<()> {
    let mut rows = Vec::new();
    for name in &options.models {
        let config = ModelConfig::named(name, options.vocab)?;
        for lora_rank in [None, Some(options.lora_rank.get() as usize)] {
            let size = ModelSize::new(&config, lora_rank);
            for (recompute, offload) in [(false, false), (true, false), (true, true)] {
                let run = MemoryOptions {
                    head_chunk_rows: Some(options.head_chunk_rows),
                    compute_bytes: options.compute_bytes,
                    models: 1,
                    recompute,
                    offload,
                };
                let trained = match lora_rank {
                    None => "all".to_owned(),
                    Some(rank) => format!("LoRA, rank {rank}"),
                };
                let blocks = match (recompute, offload) {
                    (false, _) => "kept",
                    (true, false) => "recomputed",
                    (true, true) => "recomputed, host offload",
                };
                let mut row = vec![name.clone(), trained, blocks.to_owned()];
                row.extend(options.memory.iter().map(|&gigabytes| {
                    let bytes = 1e9 * (gigabytes as f64 - options.reserve);
                    let memory = bytes.max(0.0) as u64;
                    let budget = largest_budget(&config, &size, &run, options.parts.get(), memory);
                    budget.map_or_else(|| "-".to_owned(), |rows| grouped(rounded(rows)))
                }));
                rows.push(row);
            }
        }
    }
    let memories: Vec<String> = options
        .memory
        .iter()
        .map(|gigabytes| format!("{gigabytes} GB"))
        .collect();
    let mut header = vec!["model", "trained", "blocks"];
    header.extend(memories.iter().map(String::as_str));
    println!(
        "Estimated tokens of a pack, with {} packs in memory at a time (-: nothing fits):",
        options.parts
    );
    println!("{}", table(&header, rows));
    Ok(())
}

/// Rounds to two digits, the precision of the estimate.
fn rounded(rows: u64) -> u64 {
    let unit = 10u64.pow(rows.checked_ilog10().unwrap_or(0).saturating_sub(1));
    rows / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_rounded_down_to_two_digits() {
        assert_eq!([7, 99, 123, 98_765].map(rounded), [7, 99, 120, 98_000]);
    }
}
