//! Tables and plots at the beginning and the end of a run.

use std::path::Path;

use anyhow::{Result, anyhow};
use burn_tree_train::{ModelCost, StepBound, StepCounts};
use tree_pack::{PackError, RewardStats};

use crate::data::Data;
use crate::memory::{MemoryEstimate, StepRows, available_memory, format_bytes};
use crate::options::RunArgs;
use crate::plan::{Plans, Sharing, StepPlan};
use crate::report::metrics::StepRecord;
use crate::report::plots;
use crate::report::{Comparison, Throughput, grouped, table};
use crate::run::GemmRate;
use burn_tree_models::{ModelConfig, ModelSize};

/// Prints the numbers of tasks, trajectories and tokens.
pub fn print_data(data: &Data, tasks: usize) {
    let tokens: usize = data
        .training
        .iter()
        .map(|trajectory| trajectory.len())
        .sum();
    let trained: usize = data
        .training
        .iter()
        .map(|trajectory| trajectory.trained_tokens())
        .sum();
    println!(
        "Data: {} tasks, {} trajectories, {} tokens, {} of them trained",
        grouped(tasks as u64),
        grouped(data.training.len() as u64),
        grouped(tokens as u64),
        grouped(trained as u64),
    );
    if !data.validation.is_empty() {
        println!("Validation: {} trajectories", data.validation.len());
    }
    if data.untrained_tasks > 0 {
        println!(
            "Dropped: {} tasks without a trained token",
            grouped(data.untrained_tasks as u64)
        );
    }
    if data.truncated + data.dropped > 0 {
        println!(
            "Length limit: {} trajectories truncated, {} dropped",
            data.truncated, data.dropped
        );
    }
}

/// Prints the parameters without a gradient in the first step.
pub fn print_without_gradient(names: &[String]) {
    if let [first, others @ ..] = names {
        println!(
            "Parameters without a gradient in the first step: {first}{}",
            match others.len() {
                0 => String::new(),
                count => format!(" and {count} others"),
            }
        );
    }
}

/// Prints statistics of the rewards.
pub fn print_rewards(rewards: &RewardStats) {
    println!(
        "Rewards: {} rollouts of {} tasks, mean {:.3}, from {} to {}; {} tasks with equal rewards, \
         which have no advantages",
        grouped(rewards.rollouts as u64),
        grouped(rewards.groups as u64),
        rewards.mean,
        rewards.min,
        rewards.max,
        grouped(rewards.uniform_groups as u64),
    );
}

/// Prints the bounds on the speed-up over one epoch.
pub fn print_bounds(size: &ModelSize, plans: &Plans, sharing: Sharing) -> Result<()> {
    let tree_counts = match epoch_counts(&plans.tree) {
        Err(error @ PackError::TreeOverBudget { .. }) if sharing != Sharing::Tree => {
            println!("Some tasks exceed the token budget as trees: {error}");
            return Ok(());
        }
        counts => counts?,
    };
    let flat_counts = epoch_counts(&plans.flat)?;
    let Some(bound) = StepBound::new(&size.cost, &tree_counts, &flat_counts) else {
        return Ok(());
    };
    let row = |name: &str, count: fn(&StepCounts) -> u64| {
        let (tree, flat) = (count(&tree_counts), count(&flat_counts));
        let ratio = flat as f64 / tree as f64;
        vec![
            name.into(),
            grouped(flat),
            grouped(tree),
            format!("{ratio:.2}x"),
        ]
    };
    let tera = |flops: f64| format!("{:.2}", flops / 1e12);
    println!(
        "{}",
        table(
            &["One epoch", "separate", "trees", "ratio"],
            vec![
                row("tokens computed", |counts| counts.tokens),
                row("visible query-key pairs", |counts| counts.visible_pairs),
                row("rows projected on the vocabulary", |counts| counts
                    .projected_rows),
                vec![
                    "model TFLOPs".into(),
                    tera(bound.flat_flops),
                    tera(bound.tree_flops),
                    format!("{:.2}x", bound.step_bound),
                ],
            ],
        )
    );
    println!(
        "Prefix overlap ratio (POR) {:.3}, token bound {:.2}x, step bound {:.2}x",
        bound.por, bound.token_bound, bound.step_bound
    );
    Ok(())
}

fn epoch_counts(plan: &StepPlan) -> Result<StepCounts, PackError> {
    let mut counts = StepCounts::default();
    for step in 0..plan.steps_per_epoch() {
        counts = counts + StepCounts::of_packs(&plan.packs(step)?.packs);
    }
    Ok(counts)
}

/// Prints the estimated memory, with a warning if the system has less.
pub fn print_memory(
    args: &RunArgs,
    config: &ModelConfig,
    size: &ModelSize,
    plans: &Plans,
) -> Result<()> {
    let run = args.memory_options();
    let mut steps = Vec::new();
    for &sharing in args.comparison.sharings() {
        let plans = match sharing {
            Sharing::Tree => &[&plans.tree][..],
            Sharing::Flat => &[&plans.flat],
            // Each task is computed one way or the other.
            Sharing::Auto => &[&plans.tree, &plans.flat],
        };
        for plan in plans {
            for step in 0..plan.steps_per_epoch() {
                match plan.packs(step) {
                    Ok(step) => steps.push(StepRows::of_packs(&step.packs, config.is_hybrid())),
                    Err(PackError::TreeOverBudget { .. }) if sharing == Sharing::Auto => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    let parts = steps.iter().flat_map(|step| &step.packs);
    let parts = parts.filter(|pack| pack.parent.is_some()).count();
    if parts > 0 {
        println!(
            "Partitioning: {} packs per epoch continue other packs",
            grouped(parts as u64)
        );
    }
    let largest = steps.iter().flat_map(|step| &step.packs);
    let pack_rows = largest.map(|pack| pack.rows).max().unwrap_or(0);
    let estimate = MemoryEstimate::of_steps(config, size, &run, steps);
    println!(
        "Model: {} parameters, {} trained",
        grouped(size.parameters),
        grouped(size.trained_parameters)
    );
    println!(
        "Memory estimate: {} (parameters {}, gradients {}, optimizer {}, activations of packs of \
         {} rows {}{})",
        format_bytes(estimate.total()),
        format_bytes(estimate.parameters),
        format_bytes(estimate.gradients),
        format_bytes(estimate.optimizer),
        grouped(pack_rows),
        format_bytes(estimate.activations),
        match estimate.gateways {
            0 => String::new(),
            bytes => format!(", past context of parts {}", format_bytes(bytes)),
        },
    );
    if let Some(available) = available_memory().filter(|&bytes| bytes < estimate.total()) {
        eprintln!(
            "warning: only {} of memory are available; reduce --token-budget or use --recompute",
            format_bytes(available)
        );
    }
    Ok(())
}

/// Writes the plots of a run into its folder.
pub fn draw(output: &Path, records: &[StepRecord], metrics: &[&str]) -> Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    let draw = |name: &str, picture: &dyn Fn(&Path) -> Result<(), plots::PlotError>| {
        let path = output.join(name);
        picture(&path).map_err(|error| anyhow!("{}: {error}", path.display()))
    };
    draw("loss.png", &|path| plots::loss_curve(path, records))?;
    if !metrics.is_empty() {
        draw("metrics.png", &|path| {
            plots::metrics(path, records, metrics)
        })?;
    }
    if records.iter().any(|record| record.comparison.is_some()) {
        draw("speedup.png", &|path| plots::speedup(path, records))?;
    }
    Ok(())
}

/// Prints the throughput, and the comparison if there are two variants.
pub fn print_result(records: &[StepRecord], cost: &ModelCost, gemm: &GemmRate) {
    let giga = |rate: f64| format!("{:.1}", rate / 1e9);
    let mut rows = Vec::new();
    for (name, throughput) in [
        (
            "separate trajectories",
            Throughput::new(records, |record| record.flat.as_ref()),
        ),
        (
            "trees",
            Throughput::new(records, |record| record.tree.as_ref()),
        ),
    ] {
        if let Some(throughput) = throughput {
            rows.push(vec![
                name.into(),
                format!("{:.2}", throughput.seconds_per_step),
                grouped(throughput.tokens_per_second as u64),
                giga(throughput.flops_per_second),
                format!("{:.0} %", 100.0 * throughput.flops_per_second / gemm.rate),
            ]);
        }
    }
    let header = [
        "Throughput",
        "median s/step",
        "tokens computed/s",
        "model GFLOP/s",
        "share of GEMM rate",
    ];
    println!("{}", table(&header, rows));
    let [rows, inner, columns] = gemm.shape;
    println!(
        "GEMM rate of this machine: {} GFLOP/s ([{rows}, {inner}] x [{inner}, {columns}], in the \
         dtype of the blocks)",
        giga(gemm.rate)
    );
    let Some(comparison) = Comparison::new(records, cost) else {
        return;
    };
    let mut rows = vec![
        vec![
            "prefix overlap ratio (POR)".into(),
            format!("{:.3}", comparison.bound.por),
        ],
        vec![
            "token bound".into(),
            format!("{:.2}x", comparison.bound.token_bound),
        ],
        vec![
            "step bound".into(),
            format!("{:.2}x", comparison.bound.step_bound),
        ],
        vec![
            format!("achieved over {} steps", comparison.steps),
            format!("{:.2}x", comparison.speedup),
        ],
        vec![
            "median share of the step bound".into(),
            format!("{:.2}", comparison.median_share_of_bound),
        ],
        vec![
            "largest relative deviation of the loss".into(),
            format!("{:.1e}", comparison.largest_loss_deviation),
        ],
        vec![
            "largest relative deviation of the gradient norm".into(),
            format!("{:.1e}", comparison.largest_gradient_deviation),
        ],
    ];
    if let Some(speedup) = comparison.log_prob_speedup {
        rows.push(vec![
            "old and reference log-probabilities".into(),
            format!("{speedup:.2}x"),
        ]);
    }
    println!("{}", table(&["Speed-up of training steps", ""], rows));
}
