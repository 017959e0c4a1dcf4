//! Errors of reading JSON lines.

use std::io;
use std::path::PathBuf;

use crate::trajectory::FieldError;

/// Errors of reading a file of trajectories.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be opened, or its first bytes cannot be read.
    #[error("{}: cannot open: {source}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Reading the file failed.
    #[error("{}:{line}: cannot read: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// Line at which reading failed.
        line: u64,
        /// The cause.
        source: io::Error,
    },
    /// A line is longer than the limit of the reader.
    #[error("{}:{line}: the line is longer than {limit} bytes", file.display())]
    LineTooLong {
        /// The file.
        file: PathBuf,
        /// The line.
        line: u64,
        /// The limit in bytes.
        limit: usize,
    },
    /// A line is not JSON, for example because the file is truncated.
    #[error(
        "{}:{line}:{column}: {}{message}",
        file.display(),
        field.as_ref().map_or(String::new(), |field| format!("{field}: "))
    )]
    Json {
        /// The file.
        file: PathBuf,
        /// The line.
        line: u64,
        /// Byte of the line, from 1.
        column: usize,
        /// The field being read, if any.
        field: Option<String>,
        /// The message of the JSON parser.
        message: String,
    },
    /// A field is missing or has a wrong value.
    #[error("{}:{line}: {error}", file.display())]
    Field {
        /// The file.
        file: PathBuf,
        /// The line.
        line: u64,
        /// The field, its value and the expected value.
        #[source]
        error: FieldError,
    },
}
