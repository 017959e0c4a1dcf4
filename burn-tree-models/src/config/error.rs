//! Errors of a configuration.

use std::path::PathBuf;

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
    /// The file is JSON, but not an object.
    #[error("the configuration must be a JSON object")]
    NotAnObject,
    /// A required field is absent.
    #[error("field `{field}` is missing")]
    Missing {
        /// Name of the field.
        field: String,
    },
    /// A field has an invalid value.
    #[error("field `{field}` is {value}, expected {expected}")]
    Invalid {
        /// Name of the field.
        field: String,
        /// Its value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// A field requests a feature that is not implemented.
    #[error("field `{field}` is {value}, which is not supported: {reason}")]
    Unsupported {
        /// Name of the field.
        field: String,
        /// Its value.
        value: String,
        /// The reason, or what is supported instead.
        reason: String,
    },
    /// There is no built-in configuration with this name.
    #[error("no built-in model `{name}`; there are {}", known.join(", "))]
    UnknownName {
        /// The name.
        name: String,
        /// The built-in names.
        known: Vec<&'static str>,
    },
}

impl ConfigError {
    /// [`ConfigError::Invalid`] for the value of a field.
    pub(crate) fn invalid(field: &str, value: impl ToString, expected: &'static str) -> Self {
        Self::Invalid {
            field: field.to_owned(),
            value: value.to_string(),
            expected,
        }
    }

    /// [`ConfigError::Unsupported`] for the value of a field.
    pub(crate) fn unsupported(
        field: &str,
        value: impl ToString,
        reason: impl Into<String>,
    ) -> Self {
        Self::Unsupported {
            field: field.to_owned(),
            value: value.to_string(),
            reason: reason.into(),
        }
    }

    /// [`ConfigError::Missing`] for a field.
    pub(crate) fn missing(field: &str) -> Self {
        Self::Missing {
            field: field.to_owned(),
        }
    }
}
