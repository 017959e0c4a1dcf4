//! The tables and pictures around a run.

use std::path::Path;
use std::slice::from_ref;

use anyhow::{Result, anyhow};
use burn_tree_ssm::TreeRecurrence;
use burn_tree_train::{ModelCost, StepBound, StepCounts};
use tree_training_examples::qwen3::Qwen3Config;
use tree_training_examples::training::cost::ModelSize;
use tree_training_examples::training::data::Data;
use tree_training_examples::training::memory::{
    MemoryEstimate, RunSize, available_memory, format_bytes,
};
use tree_training_examples::training::metrics::StepRecord;
use tree_training_examples::training::plan::StepPlan;
use tree_training_examples::training::plots;
use tree_training_examples::training::report::{Comparison, Throughput, grouped, table};

use crate::args::{Args, ComputeDtype};

/// What is trained.
pub fn print_data(data: &Data, plan: &StepPlan) {
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
        plan.tasks(),
        grouped(data.training.len() as u64),
        grouped(tokens as u64),
        grouped(trained as u64),
    );
    if !data.validation.is_empty() {
        println!(
            "Validation: {} trajectories of other tasks",
            data.validation.len()
        );
    }
    if data.truncated + data.dropped > 0 {
        println!(
            "Length limit: {} trajectories cut, {} left out",
            data.truncated, data.dropped
        );
    }
}

/// How much faster steps on trees can be, over one pass through the data.
pub fn print_bounds(size: &ModelSize, tree: &StepPlan, flat: &StepPlan) -> Result<()> {
    let (tree_counts, flat_counts) = (epoch_counts(tree)?, epoch_counts(flat)?);
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
            &["One epoch", "separate", "trees", "less by"],
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
        "Prefix overlap ratio (POR) {:.3}: at most {:.2}x by tokens, {:.2}x by FLOPs of a step",
        bound.por, bound.token_bound, bound.step_bound
    );
    Ok(())
}

fn epoch_counts(plan: &StepPlan) -> Result<StepCounts> {
    let mut counts = StepCounts::default();
    for step in 0..plan.steps_per_epoch() {
        counts = counts + StepCounts::of_packs(&plan.packs(step)?.packs);
    }
    Ok(counts)
}

/// Memory that the run will need, with a warning if the system has less.
pub fn print_memory(
    args: &Args,
    config: &Qwen3Config,
    size: &ModelSize,
    plans: [&StepPlan; 2],
) -> Result<()> {
    let used = match (args.no_tree, args.compare) {
        (_, true) => &plans[..],
        (true, false) => &plans[1..],
        (false, false) => &plans[..1],
    };
    let mut run = RunSize {
        pack_tokens: 0,
        projected_rows: 0,
        head_chunk_rows: args.head_chunk_rows.map(|rows| rows.get() as u64),
        kept_states: 0,
        packs_per_step: 0,
        compute_bytes: match args.compute_dtype {
            ComputeDtype::F32 => 4,
            ComputeDtype::Bf16 => 2,
        },
        models: used.len() as u64,
    };
    for plan in used {
        for step in 0..plan.steps_per_epoch() {
            let packs = plan.packs(step)?.packs;
            run.packs_per_step = run.packs_per_step.max(packs.len() as u64);
            for pack in &packs {
                let counts = StepCounts::of_pack(pack);
                run.pack_tokens = run.pack_tokens.max(counts.tokens);
                run.projected_rows = run.projected_rows.max(counts.projected_rows);
                if config.is_hybrid() {
                    let recurrence =
                        TreeRecurrence::from_layouts(from_ref(&pack.layout), pack.padded_len);
                    run.kept_states = run.kept_states.max(recurrence.n_slots() as u64);
                }
            }
        }
    }
    let estimate = MemoryEstimate::new(config, size, &run);
    println!(
        "Model: {} parameters, {} trained",
        grouped(size.parameters),
        grouped(size.trained_parameters)
    );
    println!(
        "Memory estimate: {} (parameters {}, gradients {}, optimizer {}, activations of {} tokens \
         {})",
        format_bytes(estimate.total()),
        format_bytes(estimate.parameters),
        format_bytes(estimate.gradients),
        format_bytes(estimate.optimizer),
        grouped(run.pack_tokens),
        format_bytes(estimate.activations),
    );
    if let Some(available) = available_memory().filter(|&bytes| bytes < estimate.total()) {
        eprintln!(
            "warning: only {} of memory are available; a smaller --token-budget or model needs less",
            format_bytes(available)
        );
    }
    Ok(())
}

/// Writes the pictures of a run into its folder.
pub fn draw(output: &Path, records: &[StepRecord]) -> Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    let draw = |name: &str, picture: fn(&Path, &[StepRecord]) -> Result<(), plots::PlotError>| {
        let path = output.join(name);
        picture(&path, records).map_err(|error| anyhow!("{}: {error}", path.display()))
    };
    draw("loss.png", plots::loss_curve)?;
    if records.iter().any(|record| record.comparison.is_some()) {
        draw("speedup.png", plots::speedup)?;
    }
    Ok(())
}

/// Speeds, and the comparison where there is one.
pub fn print_result(
    records: &[StepRecord],
    cost: &ModelCost,
    gemm_shape: [usize; 3],
    gemm_rate: f64,
) {
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
                format!("{:.0} %", 100.0 * throughput.flops_per_second / gemm_rate),
            ]);
        }
    }
    let header = [
        "Speed",
        "median s/step",
        "tokens computed/s",
        "model GFLOP/s",
        "of the GEMM rate",
    ];
    println!("{}", table(&header, rows));
    let [rows, inner, columns] = gemm_shape;
    println!(
        "GEMM rate of this machine: {} GFLOP/s ([{rows}, {inner}] x [{inner}, {columns}], in the \
         dtype of the blocks)",
        giga(gemm_rate)
    );
    let Some(comparison) = Comparison::new(records, cost) else {
        return;
    };
    println!(
        "{}",
        table(
            &["Speed-up of training steps", ""],
            vec![
                vec![
                    "prefix overlap ratio (POR)".into(),
                    format!("{:.3}", comparison.bound.por)
                ],
                vec![
                    "token bound".into(),
                    format!("{:.2}x", comparison.bound.token_bound)
                ],
                vec![
                    "step bound".into(),
                    format!("{:.2}x", comparison.bound.step_bound)
                ],
                vec![
                    format!("achieved over {} steps", comparison.steps),
                    format!("{:.2}x", comparison.speedup),
                ],
                vec![
                    "share of the step bound, median".into(),
                    format!("{:.2}", comparison.median_share_of_bound),
                ],
                vec![
                    "largest relative deviation of the loss".into(),
                    format!("{:.1e}", comparison.largest_loss_deviation),
                ],
                vec![
                    "largest relative deviation of the gradients' norm".into(),
                    format!("{:.1e}", comparison.largest_gradient_deviation),
                ],
            ],
        )
    );
}
