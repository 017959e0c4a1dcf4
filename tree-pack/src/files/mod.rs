//! Packed steps as files: safetensors, with a description in JSON in the header.
//!
//! The tensors of pack `i` are called `i.tokens`, `i.position_ids`, `i.parents`,
//! `i.subtree_ends`, `i.trajectory_counts`, `i.segments` (`[S, 3]`: start, end, parent or -1), and
//! `i.occurrences.rows`, `.targets`, `.weights`, `.multiplicities`, `.trajectories`,
//! `.token_indices`, `.advantages`, `.old_log_probs`, `.ref_log_probs`, `.sampling_log_probs`;
//! of a pack with a gateway also `i.gateway.runs` (`[R, 6]`: pack, first row, end of the rows,
//! position, first row that sees them, end of those) and `i.gateway.root_parents`; those of the
//! step are `trajectories.data_index` and `trajectories.trained_tokens`. The rest is JSON under the
//! key `tree_pack` of the safetensors metadata. One file holds all, so that it is whole or absent.

mod column;

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::SafeTensorError;
use safetensors::tensor::SafeTensors;
use serde::{Deserialize, Serialize};

use self::column::{Column, Element, run_column, segment_column};
use crate::forest::MAX_ROWS;
use crate::gateway::{Gateway, PastRun};
use crate::layout::{Segment, TreeLayout};
use crate::objective::{LossForm, StepTotals};
use crate::occurrence::Occurrences;
use crate::pack::Pack;
use crate::packing::{PackedStep, PacksError, StepTrajectory, validate_packs};
use crate::trajectory::MAX_TOKEN_ID;

const METADATA_KEY: &str = "tree_pack";
const VERSION: u32 = 2;
const DATA_INDEX: &str = "trajectories.data_index";
const TRAINED_TOKENS: &str = "trajectories.trained_tokens";

/// Why a file of packs cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Reading or writing failed.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file is not safetensors, or cut off.
    #[error("{}: {source}", file.display())]
    Safetensors {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: SafeTensorError,
    },
    /// The metadata is not that of packs of a known version.
    #[error("{}: metadata: {message}", file.display())]
    Metadata {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A tensor is missing, or not as it must be.
    #[error("{}: tensor {tensor:?}: got {value}, expected {expected}", file.display())]
    Tensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What was found.
        value: String,
        /// What was expected.
        expected: String,
    },
    /// The packs contradict themselves.
    #[error("{}: {source}", file.display())]
    Packs {
        /// The file.
        file: PathBuf,
        /// The contradiction.
        #[source]
        source: PacksError,
    },
}

/// The JSON part of a file.
#[derive(Serialize, Deserialize)]
struct Description {
    version: u32,
    merged: bool,
    totals: StepTotals,
    packs: Vec<PackDescription>,
}

#[derive(Serialize, Deserialize)]
struct PackDescription {
    padded_len: usize,
    loss_form: LossForm,
    task_ids: Vec<String>,
    /// [`Gateway::parent`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway_parent: Option<u32>,
}

impl PackedStep {
    /// Writes the step to a file, which is replaced as a whole or not at all.
    ///
    /// # Errors
    /// [`FileError::Io`], and [`FileError::Safetensors`] if the header exceeds what the format
    /// allows (100 MB).
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

    /// Reads a step and checks that it is consistent, so that it can be trained on as if it had
    /// just been packed.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let file = path.as_ref();
        let bytes = fs::read(file).map_err(|source| FileError::Io {
            file: file.to_owned(),
            source,
        })?;
        let tensors =
            SafeTensors::deserialize(&bytes).map_err(|source| FileError::Safetensors {
                file: file.to_owned(),
                source,
            })?;
        let Description {
            merged,
            totals,
            packs,
            ..
        } = read_description(file, &bytes)?;
        let source = StepFile { file, tensors };
        let trajectories = source.trajectories()?;
        let packs = packs.into_iter().enumerate();
        let packs = packs
            .map(|(number, pack)| source.pack(number, pack, trajectories.len()))
            .collect::<Result<Vec<_>, _>>()?;
        validate_packs(&packs).map_err(|source| FileError::Packs {
            file: file.to_owned(),
            source,
        })?;
        Ok(Self {
            packs,
            totals,
            trajectories,
            merged,
        })
    }

    fn description(&self) -> Description {
        let packs = self.packs.iter().map(|pack| PackDescription {
            padded_len: pack.padded_len,
            loss_form: pack.occurrences.loss_form,
            task_ids: pack.task_ids.clone(),
            gateway_parent: pack.gateway.as_ref().map(|gateway| gateway.parent),
        });
        Description {
            version: VERSION,
            merged: self.merged,
            totals: self.totals,
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
                trajectories.map(|entry| entry.trained_tokens),
            ),
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

fn read_description(file: &Path, bytes: &[u8]) -> Result<Description, FileError> {
    let failed = |message| FileError::Metadata {
        file: file.to_owned(),
        message,
    };
    let (_, header) =
        SafeTensors::read_metadata(bytes).map_err(|source| FileError::Safetensors {
            file: file.to_owned(),
            source,
        })?;
    let json = header
        .metadata()
        .as_ref()
        .and_then(|metadata| metadata.get(METADATA_KEY));
    let json = json.ok_or_else(|| failed(format!("no key {METADATA_KEY:?}: not packs")))?;
    /// Read first, so that another version is named rather than misunderstood.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Versioned { version } =
        serde_json::from_str(json).map_err(|error| failed(error.to_string()))?;
    if version != VERSION {
        return Err(failed(format!("version {version}, expected {VERSION}")));
    }
    serde_json::from_str(json).map_err(|error| failed(error.to_string()))
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
        // Temporary files are private; this one becomes an ordinary file.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// A file being read.
struct StepFile<'a> {
    file: &'a Path,
    tensors: SafeTensors<'a>,
}

impl StepFile<'_> {
    fn trajectories(&self) -> Result<Vec<StepTrajectory>, FileError> {
        let indices: Vec<u32> = self.column(DATA_INDEX, None)?;
        let trained: Vec<u32> = self.column(TRAINED_TOKENS, Some(indices.len()))?;
        let entries = indices.into_iter().zip(trained);
        let entries = entries.map(|(data_index, trained_tokens)| StepTrajectory {
            data_index,
            trained_tokens,
        });
        Ok(entries.collect())
    }

    fn pack(
        &self,
        number: usize,
        description: PackDescription,
        trajectories: usize,
    ) -> Result<Pack, FileError> {
        let name = |column: &str| format!("{number}.{column}");
        let PackDescription {
            padded_len,
            loss_form,
            task_ids,
            gateway_parent,
        } = description;
        let tokens: Vec<u32> = self.column(&name("tokens"), None)?;
        let rows = Some(tokens.len());
        let layout = TreeLayout {
            position_ids: self.column(&name("position_ids"), rows)?,
            parents: self.column(&name("parents"), rows)?,
            subtree_ends: self.column(&name("subtree_ends"), rows)?,
            segments: self.segments(&name("segments"))?,
            tokens,
        };
        self.below(&name("tokens"), &layout.tokens, MAX_TOKEN_ID as usize + 1)?;
        let trees = layout
            .parents
            .iter()
            .filter(|&&parent| parent == -1)
            .count();
        if task_ids.len() != trees || padded_len < layout.len() || padded_len > MAX_ROWS {
            return Err(FileError::Metadata {
                file: self.file.to_owned(),
                message: format!(
                    "pack {number} has {trees} trees of {} tokens, but {} task ids and padded_len \
                     {padded_len}",
                    layout.len(),
                    task_ids.len()
                ),
            });
        }
        let gateway = gateway_parent.map(|parent| {
            Ok(Gateway {
                parent,
                runs: self.runs(&name("gateway.runs"))?,
                root_parents: self.column(&name("gateway.root_parents"), Some(trees))?,
            })
        });
        let occurrences = self.occurrences(&name, loss_form, layout.len(), trajectories)?;
        Ok(Pack {
            layout,
            occurrences,
            trajectory_counts: self.column(&name("trajectory_counts"), rows)?,
            padded_len,
            task_ids,
            gateway: gateway.transpose()?,
        })
    }

    fn occurrences(
        &self,
        name: &dyn Fn(&str) -> String,
        loss_form: LossForm,
        layout_rows: usize,
        trajectories: usize,
    ) -> Result<Occurrences, FileError> {
        let rows: Vec<u32> = self.column(&name("occurrences.rows"), None)?;
        let length = Some(rows.len());
        let optional = |column: &str| {
            let name = name(column);
            let present = self.tensors.tensor(&name).is_ok();
            present.then(|| self.finite(&name, length)).transpose()
        };
        let occurrences = Occurrences {
            loss_form,
            targets: self.column(&name("occurrences.targets"), length)?,
            weights: self.finite(&name("occurrences.weights"), length)?,
            multiplicities: self.column(&name("occurrences.multiplicities"), length)?,
            trajectories: self.column(&name("occurrences.trajectories"), length)?,
            token_indices: self.column(&name("occurrences.token_indices"), length)?,
            advantages: optional("occurrences.advantages")?,
            old_log_probs: optional("occurrences.old_log_probs")?,
            ref_log_probs: optional("occurrences.ref_log_probs")?,
            sampling_log_probs: optional("occurrences.sampling_log_probs")?,
            rows,
        };
        self.below(&name("occurrences.rows"), &occurrences.rows, layout_rows)?;
        let tokens = MAX_TOKEN_ID as usize + 1;
        self.below(&name("occurrences.targets"), &occurrences.targets, tokens)?;
        self.below(
            &name("occurrences.trajectories"),
            &occurrences.trajectories,
            trajectories,
        )?;
        if !occurrences.rows.is_sorted() {
            let unsorted = "rows that are not in ascending order";
            return Err(self.error(&name("occurrences.rows"), unsorted, "ascending rows"));
        }
        Ok(occurrences)
    }

    fn segments(&self, name: &str) -> Result<Vec<Segment>, FileError> {
        let values: Vec<i32> = self.values(name, &[None, Some(3)])?;
        let segments = values.chunks_exact(3).map(|values| {
            let index = |value: i32| u32::try_from(value).ok();
            Some(Segment {
                start: index(values[0])?,
                end: index(values[1])?,
                parent: if values[2] == -1 {
                    None
                } else {
                    Some(index(values[2])?)
                },
            })
        });
        let segments: Option<Vec<_>> = segments.collect();
        segments.ok_or_else(|| self.error(name, "a negative number", "indices, or -1 as parent"))
    }

    fn runs(&self, name: &str) -> Result<Vec<PastRun>, FileError> {
        let values: Vec<u32> = self.values(name, &[None, Some(6)])?;
        let runs = values.chunks_exact(6).map(|values| PastRun {
            pack: values[0],
            rows: values[1]..values[2],
            position: values[3],
            visible_to: values[4]..values[5],
        });
        Ok(runs.collect())
    }

    fn finite<T: Element + Into<f64>>(
        &self,
        name: &str,
        length: Option<usize>,
    ) -> Result<Vec<T>, FileError> {
        let values: Vec<T> = self.column(name, length)?;
        match values.iter().find(|&&value| !value.into().is_finite()) {
            Some(&value) => Err(self.error(name, value.into().to_string(), "finite numbers")),
            None => Ok(values),
        }
    }

    fn below(&self, name: &str, values: &[u32], bound: usize) -> Result<(), FileError> {
        match values.iter().find(|&&value| value as usize >= bound) {
            Some(value) => Err(self.error(name, value, format!("numbers below {bound}"))),
            None => Ok(()),
        }
    }

    /// A tensor of one dimension, and of a given length.
    fn column<T: Element>(&self, name: &str, length: Option<usize>) -> Result<Vec<T>, FileError> {
        self.values(name, &[length])
    }

    /// The values of a tensor whose shape is as given, as far as it is.
    fn values<T: Element>(&self, name: &str, shape: &[Option<usize>]) -> Result<Vec<T>, FileError> {
        let tensor = self.tensors.tensor(name);
        let tensor = tensor.map_err(|_| self.error(name, "nothing", "the tensor to be there"))?;
        let fits = tensor.shape().len() == shape.len()
            && shape
                .iter()
                .zip(tensor.shape())
                .all(|(want, is)| want.is_none_or(|n| n == *is));
        if tensor.dtype() != T::DTYPE || !fits {
            let found = format!("{:?} of shape {:?}", tensor.dtype(), tensor.shape());
            let sizes: Vec<_> = shape
                .iter()
                .map(|n| n.map_or("?".into(), |n| n.to_string()))
                .collect();
            let expected = format!("{:?} of shape [{}]", T::DTYPE, sizes.join(", "));
            return Err(self.error(name, found, expected));
        }
        Ok(tensor.data().chunks_exact(T::SIZE).map(T::read).collect())
    }

    fn error(&self, tensor: &str, value: impl ToString, expected: impl Into<String>) -> FileError {
        FileError::Tensor {
            file: self.file.to_owned(),
            tensor: tensor.to_owned(),
            value: value.to_string(),
            expected: expected.into(),
        }
    }
}
