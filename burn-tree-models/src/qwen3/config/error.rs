//! What can be wrong with a configuration.

use std::path::PathBuf;

use super::named::NAMED;

/// A configuration that cannot be read or is not supported.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The file is not JSON.
    #[error("{}: not valid JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Cause, with line and column.
        source: serde_json::Error,
    },
    /// The file is JSON, but no object.
    #[error("the configuration must be a JSON object")]
    NotAnObject,
    /// A field is absent.
    #[error("field `{field}` is missing")]
    Missing {
        /// Name of the field.
        field: &'static str,
    },
    /// A field has a value that makes no sense.
    #[error("field `{field}` is {value}, expected {expected}")]
    Invalid {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A field asks for something that is not implemented.
    #[error("field `{field}` is {value}, which is not supported: {reason}")]
    Unsupported {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is supported instead.
        reason: &'static str,
    },
    /// There is no built-in configuration of that name.
    #[error("no built-in model `{0}`; there are {list}", list = NAMED.join(", "))]
    UnknownName(String),
}
