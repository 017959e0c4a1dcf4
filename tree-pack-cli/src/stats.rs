//! `tree-pack stats`: statistics of shared prefixes for each task.

use std::path::PathBuf;

use anyhow::Result;
use indicatif::HumanCount;
use serde::Serialize;
use tree_pack::{ActiveOverLength, TreeStats, build_forests};

use crate::active_plot;
use crate::drift_report::{self, DriftReport};
use crate::input::InputArgs;
use crate::output::{counted, print};
use crate::parts::{self, BudgetCounts};
use crate::report::{Format, new_table};

/// Count what trajectories share, for each task and overall.
///
/// POR is the prefix overlap ratio, 1 - unique tokens / tokens. The bound 1 / (1 - POR) is the
/// largest possible speed-up if time is proportional to tokens.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    input: InputArgs,
    /// Format of the output; JSON contains every task and fork.
    #[arg(long, value_name = "FORM", default_value = "table")]
    format: Format,
    /// Maximum number of tasks in the table.
    #[arg(long, value_name = "N", default_value_t = 50)]
    max_tasks: usize,
    /// Plot the number of active trajectories over length, as .png or .svg.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Also count packs, and parts of larger trees, for these token budgets.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    budget: Vec<usize>,
    #[command(flatten)]
    drift: drift_report::DriftArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    total: Counts,
    tasks: Vec<TaskCounts<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    budgets: Vec<BudgetCounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drift: Option<DriftReport>,
}

#[derive(Serialize)]
struct TaskCounts<'a> {
    task_id: &'a str,
    #[serde(flatten)]
    counts: Counts,
}

/// [`TreeStats`] and derived values.
#[derive(Clone, Copy, Serialize)]
struct Counts {
    #[serde(flatten)]
    stats: TreeStats,
    prefix_overlap_ratio: f64,
    token_bound: f64,
    mean_fan_out: f64,
}

impl From<TreeStats> for Counts {
    fn from(stats: TreeStats) -> Self {
        Self {
            stats,
            prefix_overlap_ratio: stats.prefix_overlap_ratio(),
            token_bound: stats.token_bound(),
            mean_fan_out: stats.mean_fan_out(),
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    let trajectories = args.input.read()?;
    let forests = build_forests(&trajectories)?;
    let task_counts = |forest| Counts::from(TreeStats::of(forest, &trajectories));
    let report = Report {
        total: TreeStats::of_all(&forests, &trajectories).into(),
        tasks: forests
            .iter()
            .map(|forest| TaskCounts {
                task_id: forest.task_id(),
                counts: task_counts(forest),
            })
            .collect(),
        budgets: parts::of_budgets(&args.budget, &forests, &trajectories)?,
        drift: args.drift.report(&forests, &trajectories)?,
    };
    if let Some(path) = &args.plot {
        let title = match forests.as_slice() {
            [only] => only.task_id().to_owned(),
            all => format!("{} ({} tasks)", args.input.names(), all.len()),
        };
        let active = ActiveOverLength::of(&forests);
        active_plot::draw(path, &title, &active, &report.total.stats)?;
    }
    match args.format {
        Format::Json => print(&(serde_json::to_string_pretty(&report)? + "\n")),
        Format::Table => print(&table(&report, args.max_tasks)),
    }
}

fn table(report: &Report, max_tasks: usize) -> String {
    let mut table = new_table(&[
        "task",
        "trajectories",
        "tokens",
        "unique",
        "POR",
        "bound",
        "trained",
        "unique trained",
        "nodes",
        "leaves",
        "depth",
        "fan-out",
        "longest",
    ]);
    for task in report.tasks.iter().take(max_tasks) {
        table.add_row(row(task.task_id, &task.counts));
    }
    let left_out = report.tasks.len().saturating_sub(max_tasks);
    if left_out > 0 {
        table.add_row([format!(
            "... and {} (--max-tasks)",
            counted(left_out as u64, "task")
        )]);
    }
    if report.tasks.len() > 1 {
        table.add_row(row(
            &format!("all {} tasks", report.tasks.len()),
            &report.total,
        ));
    }
    let total = &report.total;
    let stats = &total.stats;
    let mut text = format!(
        "{table}\n\
         Packing computes {} of {} tokens: POR {:.1} %, at most {:.2}x faster by tokens.\n\
         {}, the largest of {}; {} with {:.2} children on average, {} at most; {}.\n",
        HumanCount(stats.unique_tokens),
        HumanCount(stats.tokens),
        100.0 * total.prefix_overlap_ratio,
        total.token_bound,
        counted(stats.trees, "tree"),
        counted(stats.largest_tree_tokens, "token"),
        counted(stats.branch_nodes, "branch node"),
        total.mean_fan_out,
        HumanCount(stats.max_out_degree),
        counted(stats.mask_conflicts, "mask conflict"),
    );
    if !report.budgets.is_empty() {
        text.push_str(&format!("\n{}", parts::table(&report.budgets)));
    }
    if let Some(drift) = &report.drift {
        text.push_str(&format!("\n{}", drift.table()));
    }
    text
}

fn row(name: &str, counts: &Counts) -> Vec<String> {
    let stats = &counts.stats;
    let count = |value: u64| HumanCount(value).to_string();
    vec![
        name.to_owned(),
        count(stats.trajectories),
        count(stats.tokens),
        count(stats.unique_tokens),
        format!("{:.1} %", 100.0 * counts.prefix_overlap_ratio),
        format!("{:.2}x", counts.token_bound),
        count(stats.trained_tokens),
        count(stats.unique_trained_tokens),
        count(stats.nodes),
        count(stats.leaves),
        count(stats.max_depth_nodes),
        count(stats.max_out_degree),
        count(stats.longest_path_tokens),
    ]
}
