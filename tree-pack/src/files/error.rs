//! Errors of reading and writing files of packs.

use std::io;
use std::path::PathBuf;

use safetensors::SafeTensorError;

use crate::packs::PacksError;

/// Errors of reading and writing a file of packs.
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
    /// The file is not safetensors, or is truncated.
    #[error("{}: {source}", file.display())]
    Safetensors {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: SafeTensorError,
    },
    /// The metadata is invalid or of an unknown version.
    #[error("{}: metadata: {message}", file.display())]
    Metadata {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A tensor is missing or invalid.
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
    /// The packs are inconsistent.
    #[error("{}: {source}", file.display())]
    Packs {
        /// The file.
        file: PathBuf,
        /// The inconsistency.
        #[source]
        source: PacksError,
    },
}
