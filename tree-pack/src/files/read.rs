//! Reads steps from files.

use std::fs;
use std::path::Path;

use safetensors::tensor::SafeTensors;
use serde::Deserialize;

use super::column::Element;
use super::description::{
    DATA_INDEX, Description, METADATA_KEY, PackDescription, SEGMENT, TRAINED_TOKENS,
    TrajectoryDescription, VERSION,
};
use super::error::FileError;
use crate::forest::MAX_ROWS;
use crate::ids::StepId;
use crate::layout::{Segment, TreeLayout};
use crate::objective::LossForm;
use crate::occurrences::Occurrences;
use crate::packs::Pack;
use crate::packs::{Gateway, PastRun};
use crate::packs::{PackedStep, StepTrajectory, validate_packs};
use crate::trajectory::MAX_TOKEN_ID;

impl PackedStep {
    /// Reads a step and checks that it is consistent. It can be trained like a step that was just
    /// packed.
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
            trajectories,
            packs,
            ..
        } = read_description(file, &bytes)?;
        let source = StepFile { file, tensors };
        let trajectories = source.trajectories(trajectories)?;
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
    let json = json.ok_or_else(|| {
        failed(format!(
            "no key {METADATA_KEY:?}: the file contains no packs"
        ))
    })?;
    /// Parsed first, so that an unknown version has its own error.
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

/// A file being read.
struct StepFile<'a> {
    file: &'a Path,
    tensors: SafeTensors<'a>,
}

impl StepFile<'_> {
    fn trajectories(
        &self,
        names: Vec<TrajectoryDescription>,
    ) -> Result<Vec<StepTrajectory>, FileError> {
        let count = Some(names.len());
        let indices: Vec<u32> = self.column(DATA_INDEX, count)?;
        let trained: Vec<u32> = self.column(TRAINED_TOKENS, count)?;
        let segments: Vec<u32> = self.column(SEGMENT, count)?;
        let entries = names.into_iter().enumerate();
        let entries = entries.map(|(number, names)| StepTrajectory {
            task_id: names.task_id,
            rollout_id: names.rollout_id,
            segment: segments[number],
            data_index: indices[number],
            trained_tokens: trained[number],
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
            step,
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
            step: step.map(StepId::from_number),
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

    /// The values of a one-dimensional tensor; `length` is checked if given.
    fn column<T: Element>(&self, name: &str, length: Option<usize>) -> Result<Vec<T>, FileError> {
        self.values(name, &[length])
    }

    /// The values of a tensor; the given dimensions of `shape` are checked.
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
