//! Weights in the format of Hugging Face checkpoints (safetensors).

mod checkpoint;
mod export;
mod keys;
mod load;
mod save;

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensorError};

pub use export::{HfTensor, hf_gradients, hf_parameters};
pub(crate) use keys::key_of;
pub(crate) use keys::stored_dtype;
pub use save::SaveOptions;
pub(crate) use save::write_adapter;

use crate::config::ConfigError;

/// Name of the single weight file of a model folder.
const SINGLE_FILE: &str = "model.safetensors";
/// Name of the index of weight files of a model folder.
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Errors of reading and writing weights.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The folder has no weight files.
    #[error("{}: neither {SINGLE_FILE} nor {INDEX_FILE} found", folder.display())]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// An error of the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file is not in the safetensors format, or is truncated.
    #[error("{}: not a valid safetensors file: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: SafeTensorError,
    },
    /// The index of weight files is invalid.
    #[error("{}: {problem}", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A tensor of the model is not in the checkpoint.
    #[error("{}: tensor `{key}` is missing", path.display())]
    MissingTensor {
        /// The file or folder.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// The checkpoint has tensors that the model does not have.
    #[error(
        "{}: {} tensors do not belong to the model, the first is `{}`",
        path.display(), keys.len(), keys[0]
    )]
    UnexpectedTensors {
        /// The folder.
        path: PathBuf,
        /// Their keys, sorted.
        keys: Vec<String>,
    },
    /// The shape of a tensor differs from that of the parameter.
    #[error("{}: tensor `{key}` has shape {found:?}, expected {expected:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape of the parameter.
        expected: Vec<usize>,
    },
    /// A tensor has an unsupported dtype.
    #[error(
        "{}: tensor `{key}` has dtype {dtype:?}, expected F64, F32, F16 or BF16",
        path.display()
    )]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its dtype.
        dtype: Dtype,
    },
    /// The target exists.
    #[error("{}: exists already", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// The model has LoRA adapters, which this format does not support.
    #[error("parameter `{path}` has a LoRA adapter: merge it, or export the adapter by itself")]
    Adapter {
        /// Module path of the parameter.
        path: String,
    },
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> WeightsError + '_ {
    |source| WeightsError::Io {
        path: path.to_owned(),
        source,
    }
}
