//! The trees for measurements of operations, as packs of one row.

use std::path::Path;

use anyhow::{Context, Result, bail};
use tree_pack::{PackOptions, PackedStep, Trajectory, build_forests, load_trajectories, pack_step};

use super::trees::TreeShape;

/// Rows are a multiple of this.
pub const PAD_TO_MULTIPLE: usize = 128;

/// A vocabulary size below that of all models.
const VOCABULARY: usize = 100_000;

/// A pack and the name of its tree.
pub struct NamedPack {
    /// `star16` etc., or `recorded`.
    pub name: String,
    /// One pack.
    pub step: PackedStep,
}

impl NamedPack {
    /// The tree with a name of [`TreeShape::named`] and about `rows` tokens, or for `recorded` the
    /// fullest pack of at most `rows` tokens of the recorded runs in `data`.
    ///
    /// # Errors
    /// If the name is unknown, the file cannot be read, or no tree in it fits.
    pub fn new(name: &str, rows: usize, data: &Path) -> Result<Self> {
        let trajectories = match name {
            "recorded" => load_trajectories([data])?,
            _ => TreeShape::named(name, rows)
                .with_context(|| {
                    format!(
                        "unknown tree {name:?}, expected one of {}, recorded",
                        TreeShape::NAMES.join(", ")
                    )
                })?
                .trajectories(name, VOCABULARY),
        };
        let step = first_pack(&trajectories, rows)
            .with_context(|| format!("tree {name} with {rows} rows"))?;
        Ok(Self {
            name: name.to_owned(),
            step,
        })
    }

    /// Saves all packs in a folder, which is created if needed.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save_all(packs: &[Self], folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        for Self { name, step } in packs {
            step.save(folder.join(format!("{name}.safetensors")))?;
        }
        Ok(())
    }
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
