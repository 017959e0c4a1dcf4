//! Writes steps to files.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::column::{Column, run_column, segment_column};
use super::description::{
    DATA_INDEX, Description, METADATA_KEY, PackDescription, SEGMENT, TRAINED_TOKENS,
    TrajectoryDescription, VERSION,
};
use super::error::FileError;
use crate::ids::StepId;
use crate::packs::Pack;
use crate::packs::PackedStep;

impl PackedStep {
    /// Writes the step to a file and replaces an existing one atomically.
    ///
    /// # Errors
    /// [`FileError::Io`], and [`FileError::Safetensors`] if the header exceeds the limit of the
    /// format (100 MB).
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), FileError> {
        let path = path.as_ref();
        let description =
            serde_json::to_string(&self.description()).map_err(|error| FileError::Metadata {
                file: path.to_owned(),
                message: error.to_string(),
            })?;
        let metadata = HashMap::from([(METADATA_KEY.to_owned(), description)]);
        let columns = self
            .columns()
            .into_iter()
            .map(|column| (column.name.clone(), column));
        let bytes = safetensors::serialize(columns, Some(metadata)).map_err(|source| {
            FileError::Safetensors {
                file: path.to_owned(),
                source,
            }
        })?;
        replace_file(path, &bytes).map_err(|source| FileError::Io {
            file: path.to_owned(),
            source,
        })
    }

    fn description(&self) -> Description {
        let packs = self.packs.iter().map(|pack| PackDescription {
            padded_len: pack.padded_len,
            loss_form: pack.occurrences.loss_form,
            task_ids: pack.task_ids.clone(),
            gateway_parent: pack.gateway.as_ref().map(|gateway| gateway.parent),
            step: pack.step.map(StepId::to_number),
        });
        let trajectories = self.trajectories.iter();
        let trajectories = trajectories.map(|entry| TrajectoryDescription {
            task_id: entry.task_id.clone(),
            rollout_id: entry.rollout_id.clone(),
        });
        Description {
            version: VERSION,
            merged: self.merged,
            totals: self.totals,
            trajectories: trajectories.collect(),
            packs: packs.collect(),
        }
    }

    fn columns(&self) -> Vec<Column> {
        let trajectories = self.trajectories.iter();
        let mut columns = vec![
            Column::new(
                DATA_INDEX.to_owned(),
                trajectories.clone().map(|entry| entry.data_index),
            ),
            Column::new(
                TRAINED_TOKENS.to_owned(),
                trajectories.clone().map(|entry| entry.trained_tokens),
            ),
            Column::new(SEGMENT.to_owned(), trajectories.map(|entry| entry.segment)),
        ];
        for (number, pack) in self.packs.iter().enumerate() {
            let Pack {
                layout,
                occurrences,
                ..
            } = pack;
            let name = |column: &str| format!("{number}.{column}");
            let mut integers = |column: &str, values: &[u32]| {
                columns.push(Column::new(name(column), values.iter().copied()));
            };
            integers("tokens", &layout.tokens);
            integers("position_ids", &layout.position_ids);
            integers("subtree_ends", &layout.subtree_ends);
            integers("trajectory_counts", &pack.trajectory_counts);
            integers("occurrences.rows", &occurrences.rows);
            integers("occurrences.targets", &occurrences.targets);
            integers("occurrences.multiplicities", &occurrences.multiplicities);
            integers("occurrences.trajectories", &occurrences.trajectories);
            integers("occurrences.token_indices", &occurrences.token_indices);
            columns.push(Column::new(name("parents"), layout.parents.iter().copied()));
            columns.push(segment_column(name("segments"), &layout.segments));
            if let Some(gateway) = &pack.gateway {
                let root_parents = gateway.root_parents.iter().copied();
                columns.push(Column::new(name("gateway.root_parents"), root_parents));
                columns.push(run_column(name("gateway.runs"), &gateway.runs));
            }
            let weights = occurrences.weights.iter().copied();
            columns.push(Column::new(name("occurrences.weights"), weights));
            for (column, values) in [
                ("occurrences.advantages", &occurrences.advantages),
                ("occurrences.old_log_probs", &occurrences.old_log_probs),
                ("occurrences.ref_log_probs", &occurrences.ref_log_probs),
                (
                    "occurrences.sampling_log_probs",
                    &occurrences.sampling_log_probs,
                ),
            ] {
                let values = values.iter();
                columns.extend(values.map(|v| Column::new(name(column), v.iter().copied())));
            }
        }
        columns
    }
}

/// Writes a temporary file in the same folder and renames it.
fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Temporary files are private, but this one becomes an ordinary file.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
