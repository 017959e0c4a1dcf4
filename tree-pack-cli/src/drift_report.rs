//! Places where trajectories of a task diverge, and whether their texts differ there.

use anyhow::Result;
use indicatif::HumanCount;
use rayon::prelude::*;
use serde::Serialize;
use tree_pack::{Branch, Fork, PrefixForest, Trajectory, forks};

use crate::input::tokenizer_file;
use crate::output::counted;
use crate::report::new_table;

/// Options of the drift report.
#[derive(clap::Args)]
pub struct DriftArgs {
    /// Report where trajectories of a task diverge.
    #[arg(long)]
    drift: bool,
    /// Report drift with texts: branches that are different tokens of the same text
    /// (retokenisation). A tokenizer.json (may be gzipped), or the folder of a model.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<std::path::PathBuf>,
    /// Maximum number of forks in the table: retokenised ones first, then by shared tokens.
    #[arg(long, value_name = "N", default_value_t = 20)]
    max_forks: usize,
}

/// Forks of all tasks.
#[derive(Serialize)]
pub struct DriftReport {
    /// Number of forks.
    fork_count: usize,
    /// Forks where the first different tokens were sampled in all branches.
    sampled_forks: usize,
    /// Forks where branches begin with different tokens of the same text; `None` without a
    /// tokenizer.
    retokenized_forks: Option<usize>,
    /// Equal tokens that are not shared because different tokens of the same text precede them.
    tokens_lost: Option<usize>,
    forks: Vec<ForkRecord>,
    #[serde(skip)]
    max_forks: usize,
}

#[derive(Serialize)]
struct ForkRecord {
    task_id: String,
    /// Number of shared tokens: the index of the first different one.
    position: u32,
    branches: Vec<BranchRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retokenized: Option<Vec<RetokenizedRecord>>,
}

#[derive(Serialize)]
struct BranchRecord {
    /// Rollout of the first trajectory through the branch.
    rollout_id: String,
    segment: u32,
    /// Trajectories through the branch.
    trajectories: u32,
    /// Tokens of the branch, each counted once.
    tokens: u32,
    /// Whether its first token is trained; otherwise it is context.
    sampled: bool,
    /// Beginning of its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

#[derive(Serialize)]
struct RetokenizedRecord {
    branches: [usize; 2],
    text: String,
    tokens: [Vec<u32>; 2],
    equal_tokens_after: usize,
}

impl DriftArgs {
    /// The report, if an option requests it.
    pub fn report(
        &self,
        forests: &[PrefixForest],
        trajectories: &[Trajectory],
    ) -> Result<Option<DriftReport>> {
        if let Some(path) = &self.tokenizer {
            let path = tokenizer_file(path)?;
            let tokenizer = tree_pack::text::TextTokenizer::from_file(&path)?;
            let records = records(forests, trajectories, |fork, record| {
                describe(fork, record, trajectories, &tokenizer)
            })?;
            return Ok(Some(DriftReport::new(records, self.max_forks)));
        }
        if !self.drift {
            return Ok(None);
        }
        let records = records(forests, trajectories, |_, _| Ok(()))?;
        Ok(Some(DriftReport::new(records, self.max_forks)))
    }
}

fn records(
    forests: &[PrefixForest],
    trajectories: &[Trajectory],
    describe: impl Fn(&Fork, &mut ForkRecord) -> Result<()> + Sync,
) -> Result<Vec<ForkRecord>> {
    let of_forest = |forest: &PrefixForest| {
        let records = forks(forest, trajectories).into_iter().map(|fork| {
            let mut record = ForkRecord {
                task_id: forest.task_id().to_owned(),
                position: fork.position,
                branches: fork
                    .branches
                    .iter()
                    .map(|at| BranchRecord::new(at, trajectories))
                    .collect(),
                retokenized: None,
            };
            describe(&fork, &mut record)?;
            Ok(record)
        });
        records.collect::<Result<Vec<_>>>()
    };
    let by_forest: Vec<_> = forests.par_iter().map(of_forest).collect::<Result<_>>()?;
    Ok(by_forest.into_iter().flatten().collect())
}

/// Adds the texts of the branches, and the pairs with equal texts.
fn describe(
    fork: &Fork,
    record: &mut ForkRecord,
    trajectories: &[Trajectory],
    tokenizer: &tree_pack::text::TextTokenizer,
) -> Result<()> {
    const PREVIEW_TOKENS: usize = 12;
    for (branch, record) in fork.branches.iter().zip(&mut record.branches) {
        let tokens = &trajectories[branch.trajectory as usize].tokens[fork.position as usize..];
        record.text = Some(tokenizer.decode(&tokens[..tokens.len().min(PREVIEW_TOKENS)])?);
    }
    let found = fork.retokenizations(trajectories, tokenizer)?;
    let found = found.into_iter().map(|found| RetokenizedRecord {
        branches: found.branches,
        text: found.text,
        tokens: found.tokens,
        equal_tokens_after: found.equal_after,
    });
    record.retokenized = Some(found.collect());
    Ok(())
}

impl BranchRecord {
    fn new(branch: &Branch, trajectories: &[Trajectory]) -> Self {
        let trajectory = &trajectories[branch.trajectory as usize];
        Self {
            rollout_id: trajectory.rollout_id.clone(),
            segment: trajectory.segment,
            trajectories: branch.trajectories,
            tokens: branch.tokens,
            sampled: branch.is_trained,
            text: None,
        }
    }
}

impl ForkRecord {
    fn is_sampled(&self) -> bool {
        self.branches.iter().all(|branch| branch.sampled)
    }

    fn trajectories(&self) -> u64 {
        self.branches
            .iter()
            .map(|branch| u64::from(branch.trajectories))
            .sum()
    }

    fn retokenized(&self) -> &[RetokenizedRecord] {
        self.retokenized.as_deref().unwrap_or_default()
    }

    fn explanation(&self) -> String {
        if let Some(found) = self.retokenized().first() {
            let [left, right] = &found.tokens;
            return format!(
                "same text {:?} in {} or {} tokens, {} equal after",
                shortened(&found.text),
                left.len(),
                right.len(),
                HumanCount(found.equal_tokens_after as u64)
            );
        }
        let texts: Vec<_> = self
            .branches
            .iter()
            .filter_map(|branch| branch.text.as_ref())
            .collect();
        if texts.is_empty() {
            let names = self
                .branches
                .iter()
                .map(|branch| branch.rollout_id.as_str());
            return names.take(3).collect::<Vec<_>>().join(" / ");
        }
        let texts = texts
            .iter()
            .take(3)
            .map(|text| format!("{:?}", shortened(text)));
        texts.collect::<Vec<_>>().join(" / ")
    }
}

impl DriftReport {
    fn new(forks: Vec<ForkRecord>, max_forks: usize) -> Self {
        let has_texts = forks.iter().all(|fork| fork.retokenized.is_some());
        let retokenized = || forks.iter().filter(|fork| !fork.retokenized().is_empty());
        let lost = || retokenized().flat_map(ForkRecord::retokenized);
        Self {
            fork_count: forks.len(),
            sampled_forks: forks.iter().filter(|fork| fork.is_sampled()).count(),
            retokenized_forks: has_texts.then(|| retokenized().count()),
            tokens_lost: has_texts.then(|| lost().map(|found| found.equal_tokens_after).sum()),
            forks,
            max_forks,
        }
    }

    /// The summary and the most important forks.
    pub fn table(&self) -> String {
        let mut order: Vec<&ForkRecord> = self.forks.iter().collect();
        order.sort_by_key(|fork| {
            let shared = u64::from(fork.position) * fork.trajectories();
            (fork.retokenized().is_empty(), std::cmp::Reverse(shared))
        });
        let mut table = new_table(&[
            "task",
            "shared tokens",
            "branches",
            "trajectories",
            "tokens after",
            "differ in",
        ]);
        if let Some(column) = table.column_mut(5) {
            column.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
        for fork in order.iter().take(self.max_forks) {
            let after: u64 = fork
                .branches
                .iter()
                .map(|branch| u64::from(branch.tokens))
                .sum();
            table.add_row([
                fork.task_id.clone(),
                HumanCount(fork.position.into()).to_string(),
                HumanCount(fork.branches.len() as u64).to_string(),
                HumanCount(fork.trajectories()).to_string(),
                HumanCount(after).to_string(),
                format!("{}: {}", kind(fork), fork.explanation()),
            ]);
        }
        let left_out = self.fork_count.saturating_sub(self.max_forks);
        if left_out > 0 {
            table.add_row([format!(
                "... and {} (--max-forks)",
                counted(left_out as u64, "fork")
            )]);
        }
        let mut text = format!(
            "Trajectories diverge in {}, in {} of them at sampled tokens",
            counted(self.fork_count as u64, "place"),
            HumanCount(self.sampled_forks as u64)
        );
        if let (Some(forks), Some(tokens)) = (self.retokenized_forks, self.tokens_lost) {
            text.push_str(&format!(
                "; in {} the same text has different tokens, which costs {}",
                HumanCount(forks as u64),
                counted(tokens as u64, "shared token")
            ));
        }
        format!("{text}.\n{table}\n")
    }
}

fn kind(fork: &ForkRecord) -> &'static str {
    let sampled = fork.branches.iter().filter(|branch| branch.sampled).count();
    match sampled {
        0 => "context",
        all if all == fork.branches.len() => "sampled",
        _ => "sampled or context",
    }
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 28;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
