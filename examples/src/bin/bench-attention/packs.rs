//! The trees that are measured, as packs of one row.

use anyhow::{Context, Result, bail};
use tree_pack::{PackOptions, PackedStep, Trajectory, build_forests, load_trajectories, pack_step};
use tree_training_examples::benchmark::trees::TreeShape;

use crate::args::Args;

/// Rows are a multiple of this.
const PAD_TO_MULTIPLE: usize = 128;

/// Below the largest token id of any model.
const VOCABULARY: usize = 100_000;

/// A pack and the name of its tree.
pub struct NamedPack {
    /// `star16` etc., or `recorded`.
    pub name: String,
    /// One pack.
    pub step: PackedStep,
}

/// The packs of all trees that are asked for.
pub fn packs(args: &Args) -> Result<Vec<NamedPack>> {
    let pack = |name: &String| {
        let trajectories = match name.as_str() {
            "recorded" => load_trajectories([&args.data])?,
            _ => TreeShape::named(name, args.rows)
                .with_context(|| {
                    format!(
                        "--trees {name}: there are {}, recorded",
                        TreeShape::NAMES.join(", ")
                    )
                })?
                .trajectories(name, VOCABULARY),
        };
        let step = first_pack(&trajectories, args.rows)
            .with_context(|| format!("--trees {name} with --rows {}", args.rows))?;
        Ok(NamedPack {
            name: name.clone(),
            step,
        })
    };
    args.trees.iter().map(pack).collect()
}

/// The fullest pack of the trees that fit in `rows`.
fn first_pack(trajectories: &[Trajectory], rows: usize) -> Result<PackedStep> {
    let mut forests = build_forests(trajectories)?;
    forests.retain(|forest| forest.trees().iter().all(|tree| tree.rows.len() <= rows));
    let options = PackOptions {
        pad_to_multiple: PAD_TO_MULTIPLE,
        ..PackOptions::new(rows)
    };
    let mut step = pack_step(trajectories, &forests, &options)?;
    step.packs
        .sort_by_key(|pack| std::cmp::Reverse(pack.layout.len()));
    step.packs.truncate(1);
    if step.packs.is_empty() {
        bail!("no tree fits");
    }
    Ok(step)
}
