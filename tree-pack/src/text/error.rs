//! Errors of templates, tokenizers and messages.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::reader::ReadError;

/// An error of reading, rendering or tokenising message trajectories.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file could not be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A configuration file is not JSON.
    #[error("{}: not valid JSON: {problem}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser found.
        problem: String,
    },
    /// A `tokenizer_config.json` has no template.
    #[error(
        "{}: no `chat_template` (expected a string, or a list with one named `default`)",
        path.display()
    )]
    NoTemplate {
        /// The file.
        path: PathBuf,
    },
    /// A template does not compile, or fails while rendering.
    #[error("{origin}:{line}: {problem}")]
    Template {
        /// File name of the template.
        origin: String,
        /// Line in the template, from 1.
        line: usize,
        /// What went wrong, such as the message of `raise_exception`.
        problem: String,
    },
    /// The turns of the template cannot be tokenised block by block.
    #[error("{origin}: {problem}")]
    TurnFormat {
        /// File name of the template.
        origin: String,
        /// What was expected and not found.
        problem: String,
    },
    /// A tokenizer could not be loaded, or failed on a text.
    #[error("{}: {problem}", path.display())]
    Tokenizer {
        /// The tokenizer's file.
        path: PathBuf,
        /// What went wrong.
        problem: String,
    },
    /// An argument has an invalid value.
    #[error("{name} is `{value}`: {problem}")]
    Argument {
        /// Name of the argument.
        name: &'static str,
        /// The value given.
        value: String,
        /// What was expected.
        problem: String,
    },
    /// A message file cannot be read, or one of its conversations cannot be rendered or tokenised.
    #[error(transparent)]
    Messages(#[from] ReadError),
}

impl TextError {
    pub(super) fn read(path: &Path, source: std::io::Error) -> Self {
        Self::Read {
            path: path.to_owned(),
            source,
        }
    }

    pub(super) fn template(origin: &str, error: &minijinja::Error) -> Self {
        let mut problem = match error.detail() {
            Some(detail) => format!("{}: {detail}", error.kind()),
            None => error.kind().to_string(),
        };
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            problem.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        Self::Template {
            origin: origin.to_owned(),
            line: error.line().unwrap_or(1),
            problem,
        }
    }
}
