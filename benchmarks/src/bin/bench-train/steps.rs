//! The timed steps.

use std::path::Path;

use anyhow::{Context, Result, bail};
use burn_tree_train::StepCounts;
use clap::ValueEnum;
use tree_pack::{
    PackOptions, PackedStep, Partitioning, PrefixForest, Trajectory, build_forests, flat_forests,
    load_trajectories, pack_step,
};
use tree_training_benchmarks::trees::TreeShape;

use crate::args::{Args, Parts};

/// Rows of packs are a multiple of this, so that kernels are tuned for fewer shapes.
pub const PAD_TO_MULTIPLE: usize = 128;

/// One optimizer step on trees and on separate trajectories.
pub struct BenchStep {
    /// `synthetic-0.60`, or the name of the file.
    pub name: String,
    /// Packs on trees.
    pub tree: PackedStep,
    /// Packs on separate trajectories.
    pub flat: PackedStep,
}

impl BenchStep {
    fn new(
        name: String,
        trajectories: &[Trajectory],
        token_budget: usize,
        parts: Parts,
    ) -> Result<Self> {
        let pack = |forests: Vec<PrefixForest>, partitioning| {
            let options = PackOptions {
                pad_to_multiple: PAD_TO_MULTIPLE,
                partitioning,
                ..PackOptions::new(token_budget)
            };
            pack_step(trajectories, &forests, &options)
        };
        let name = match parts {
            Parts::Refuse => name,
            _ => {
                let parts = parts.to_possible_value().expect("no value is hidden");
                format!("{name} {}", parts.get_name())
            }
        };
        let (tree, flat) = (build_forests(trajectories)?, flat_forests(trajectories)?);
        Ok(Self {
            tree: pack(tree, parts.into()).with_context(|| name.clone())?,
            flat: pack(flat, Partitioning::Refuse).with_context(|| name.clone())?,
            name,
        })
    }

    /// The properties that the time of the step on separate trajectories depends on.
    pub fn flat_shape(&self) -> (StepCounts, Vec<usize>) {
        let [_, counts] = self.counts();
        let rows = self.flat.packs.iter().map(|pack| pack.padded_len);
        (counts, rows.collect())
    }

    /// Counts of the step on trees and on separate trajectories.
    pub fn counts(&self) -> [StepCounts; 2] {
        [&self.tree, &self.flat].map(|step| StepCounts::of_packs(&step.packs))
    }

    /// Saves both as `NAME.tree.safetensors` and `NAME.flat.safetensors`.
    pub fn save(&self, folder: &Path) -> Result<()> {
        for (variant, step) in [("tree", &self.tree), ("flat", &self.flat)] {
            step.save(folder.join(format!("{}.{variant}.safetensors", self.name)))?;
        }
        Ok(())
    }
}

/// The steps selected by the options.
pub fn steps(args: &Args) -> Result<Vec<BenchStep>> {
    let budget = args.token_budget.get();
    let mut steps = Vec::new();
    for &overlap in &args.overlaps {
        let shape = TreeShape::two_forks(overlap, args.length).with_context(|| {
            format!(
                "--overlaps {overlap}: trees of 16 trajectories of {} tokens have overlaps from \
                 about 0.16 to 0.93",
                args.length
            )
        })?;
        let trajectories: Vec<Trajectory> = (0..args.trees.get())
            .flat_map(|tree| shape.trajectories(&format!("tree {tree}"), args.vocab))
            .collect();
        for &parts in &args.partitioning {
            let name = format!("synthetic-{overlap:.2}");
            steps.push(BenchStep::new(name, &trajectories, budget, parts)?);
        }
    }
    for file in &args.data {
        let trajectories = load_trajectories([file])?;
        let tokens = trajectories.iter().flat_map(|path| &path.tokens);
        if let Some(token) = tokens.copied().find(|&token| token as usize >= args.vocab) {
            bail!(
                "{}: token id {token}, but --vocab is {}",
                file.display(),
                args.vocab
            );
        }
        let trajectories = first_tasks(trajectories, args.step_tokens);
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        for &parts in &args.partitioning {
            let name = name.trim_end_matches(".jsonl.gz").to_owned();
            steps.push(BenchStep::new(name, &trajectories, budget, parts)?);
        }
    }
    Ok(steps)
}

/// The first task, and the following tasks while the total is at most `tokens` tokens.
fn first_tasks(trajectories: Vec<Trajectory>, tokens: usize) -> Vec<Trajectory> {
    let mut tasks: Vec<Vec<Trajectory>> = Vec::new();
    for trajectory in trajectories {
        match tasks
            .iter_mut()
            .find(|task| task[0].task_id == trajectory.task_id)
        {
            Some(task) => task.push(trajectory),
            None => tasks.push(vec![trajectory]),
        }
    }
    let mut total = 0;
    let within = |task: &Vec<Trajectory>| {
        let first = total == 0;
        total += task.iter().map(Trajectory::len).sum::<usize>();
        first || total <= tokens
    };
    tasks.into_iter().take_while(within).flatten().collect()
}
