//! Checkpoints for exact resumption: the records of model and optimizer in Burn's format, and the
//! position in the data.
//!
//! A checkpoint is a folder `step-00000012` with `model.bpk`, `optimizer.bpk` and `state.json`. It
//! is written under a temporary name and renamed when complete, so a folder with the final name is
//! always complete. (safetensors files have no parameter ids, which the optimizer's state is
//! matched by.)

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::store::RecordError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::run::atomic;

const MODEL_FILE: &str = "model.bpk";
const OPTIMIZER_FILE: &str = "optimizer.bpk";
const STATE_FILE: &str = "state.json";
const FORMAT_VERSION: u32 = 1;

/// The position and the settings of a run.
///
/// The data order and the learning rate are functions of `settings` and `completed_steps`, so no
/// generator state is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Version of the checkpoint format.
    pub format_version: u32,
    /// Completed optimizer steps.
    pub completed_steps: usize,
    /// All settings that affect the results. A resumed run must have the same values.
    pub settings: BTreeMap<String, Value>,
}

impl RunState {
    /// The state after `completed_steps` steps.
    pub fn new(completed_steps: usize, settings: BTreeMap<String, Value>) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            completed_steps,
            settings,
        }
    }

    /// Checks that the settings of a resumed run are unchanged.
    pub fn check_settings(&self, now: &BTreeMap<String, Value>) -> Result<(), CheckpointError> {
        let names = self.settings.keys().chain(now.keys());
        for name in names {
            let (then, now) = (self.settings.get(name), now.get(name));
            if then != now {
                let show = |value: Option<&Value>| value.unwrap_or(&Value::Null).to_string();
                return Err(CheckpointError::OtherSettings {
                    name: name.clone(),
                    then: show(then),
                    now: show(now),
                });
            }
        }
        Ok(())
    }
}

/// Errors of a checkpoint.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// A file or folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The folder of the checkpoint cannot be created.
    #[error("checkpoint: {0}")]
    Folder(#[from] io::Error),
    /// A record cannot be read, written or applied.
    #[error("{}: {source}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The error of Burn.
        source: RecordError,
    },
    /// The state file is invalid.
    #[error("{}: invalid checkpoint state: {source}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// The checkpoint was written by another version of the program.
    #[error("{}: format version {found}, expected {FORMAT_VERSION}", path.display())]
    Version {
        /// The state file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// There is no checkpoint.
    #[error("{}: no checkpoint found (a folder named step-…)", .0.display())]
    None(
        /// The folder searched.
        PathBuf,
    ),
    /// A setting differs from that of the run.
    #[error("the run was started with {name} = {then}, got {name} = {now}")]
    OtherSettings {
        /// Name of the setting.
        name: String,
        /// Its value in the checkpoint.
        then: String,
        /// Its value now.
        now: String,
    },
}

/// Writes a checkpoint into `folder` and returns its path. When it is complete, all but the newest
/// `keep` checkpoints are removed.
pub fn save<M: Module>(
    folder: &Path,
    state: &RunState,
    model: &M,
    optimizer: &ModuleOptimizer,
    keep: usize,
) -> Result<PathBuf, CheckpointError> {
    let complete = folder.join(format!("step-{:08}", state.completed_steps));
    atomic::write_folder(&complete, |unfinished| {
        let path = unfinished.join(MODEL_FILE);
        model
            .clone()
            .save_file(&path)
            .map_err(record_error(&path))?;
        let path = unfinished.join(OPTIMIZER_FILE);
        optimizer.save(&path).map_err(record_error(&path))?;
        let path = unfinished.join(STATE_FILE);
        let text = serde_json::to_vec_pretty(state).map_err(|source| CheckpointError::State {
            path: path.clone(),
            source,
        })?;
        fs::write(&path, text).map_err(io_error(&path))
    })?;

    let all = list(folder)?;
    for old in &all[..all.len().saturating_sub(keep.max(1))] {
        fs::remove_dir_all(old).map_err(io_error(old))?;
    }
    Ok(complete)
}

/// The checkpoint at `path`: the folder itself if it is one, else the newest one in it or in its
/// `checkpoints` folder.
pub fn find(path: &Path) -> Result<PathBuf, CheckpointError> {
    if path.join(STATE_FILE).is_file() {
        return Ok(path.into());
    }
    for folder in [path.into(), path.join("checkpoints")] {
        if folder.is_dir()
            && let Some(newest) = list(&folder)?.pop()
        {
            return Ok(newest);
        }
    }
    Err(CheckpointError::None(path.into()))
}

/// Reads the state of a checkpoint.
pub fn load_state(checkpoint: &Path) -> Result<RunState, CheckpointError> {
    let path = checkpoint.join(STATE_FILE);
    let text = fs::read(&path).map_err(io_error(&path))?;
    let state: RunState =
        serde_json::from_slice(&text).map_err(|source| CheckpointError::State {
            path: path.clone(),
            source,
        })?;
    if state.format_version != FORMAT_VERSION {
        return Err(CheckpointError::Version {
            path,
            found: state.format_version,
        });
    }
    Ok(state)
}

/// Loads the parameters and their ids into a model of the same shape.
pub fn load_model<M: Module>(checkpoint: &Path, model: M) -> Result<M, CheckpointError> {
    let path = checkpoint.join(MODEL_FILE);
    model.try_load_file(&path).map_err(record_error(&path))
}

/// Loads the optimizer state. Its parameter groups must be those of the model loaded with
/// [`load_model`].
pub fn load_optimizer(
    checkpoint: &Path,
    optimizer: ModuleOptimizer,
) -> Result<ModuleOptimizer, CheckpointError> {
    let path = checkpoint.join(OPTIMIZER_FILE);
    optimizer.load(&path).map_err(record_error(&path))
}

/// The complete checkpoints, in ascending order of step.
fn list(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(io_error(folder))? {
        let path = entry.map_err(io_error(folder))?.path();
        let step = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix("step-")?.parse::<usize>().ok());
        if let Some(step) = step
            && path.join(STATE_FILE).is_file()
        {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> CheckpointError + '_ {
    move |source| CheckpointError::Io {
        path: path.into(),
        source,
    }
}

fn record_error(path: &Path) -> impl Fn(RecordError) -> CheckpointError + '_ {
    move |source| CheckpointError::Record {
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::adamw::{AdamWOptions, adamw};
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, Tensor};
    use serde_json::json;

    const ADAMW: AdamWOptions = AdamWOptions {
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.0,
    };

    fn settings(seed: u64) -> BTreeMap<String, Value> {
        BTreeMap::from([("seed".to_string(), json!(seed))])
    }

    fn step(layer: Linear, optimizer: &mut ModuleOptimizer, device: &Device) -> Linear {
        let x = Tensor::<2>::from_floats([[0.3, -1.7], [0.9, 0.2]], device);
        let loss = layer.forward(x).square().sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &layer);
        optimizer.step(1e-2, layer, gradients)
    }

    fn weights(layer: &Linear) -> Vec<u32> {
        let data = layer.weight.val().into_data();
        data.iter::<f32>().map(f32::to_bits).collect()
    }

    #[test]
    fn continues_bit_identically_from_the_newest_checkpoint() {
        let device = Device::flex().autodiff();
        let folder = tempfile::tempdir().unwrap();
        let mut layer = LinearConfig::new(2, 2).init(&device);
        let mut optimizer = adamw(&layer, &ADAMW, &device);
        for completed in 1..=3 {
            layer = step(layer, &mut optimizer, &device);
            let state = RunState::new(completed, settings(7));
            save(folder.path(), &state, &layer, &optimizer, 2).unwrap();
        }
        let expected = weights(&step(layer, &mut optimizer, &device));

        let newest = find(folder.path()).unwrap();
        let state = load_state(&newest).unwrap();
        assert_eq!(state, RunState::new(3, settings(7)));
        let layer = load_model(&newest, LinearConfig::new(2, 2).init(&device)).unwrap();
        let optimizer = adamw(&layer, &ADAMW, &device);
        let mut optimizer = load_optimizer(&newest, optimizer).unwrap();
        assert_eq!(weights(&step(layer, &mut optimizer, &device)), expected);

        // Only the two newest are kept, and no temporary folders.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn an_unfinished_checkpoint_is_never_found() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(".unfinished-abc")).unwrap();
        fs::create_dir(folder.path().join("step-00000009")).unwrap();
        let error = find(folder.path()).unwrap_err();
        assert!(matches!(error, CheckpointError::None(_)), "{error}");
    }

    #[test]
    fn other_settings_are_named() {
        let error = RunState::new(1, settings(7))
            .check_settings(&settings(8))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the run was started with seed = 7, got seed = 8"
        );
    }

    #[test]
    fn a_model_of_another_shape_is_refused() {
        let device = Device::flex().autodiff();
        let folder = tempfile::tempdir().unwrap();
        let layer = LinearConfig::new(2, 2).init(&device);
        let optimizer = adamw(&layer, &ADAMW, &device);
        let state = RunState::new(1, settings(7));
        let saved = save(folder.path(), &state, &layer, &optimizer, 1).unwrap();
        let error = load_model(&saved, LinearConfig::new(3, 2).init(&device)).unwrap_err();
        assert!(error.to_string().contains("model.bpk"), "{error}");
    }
}
