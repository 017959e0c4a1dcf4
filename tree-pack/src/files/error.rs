//! Errors of reading and writing files of packs.

use std::io;
use std::path::PathBuf;

use safetensors::SafeTensorError;

use crate::packs::PacksError;

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
