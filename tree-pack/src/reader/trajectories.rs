//! Streaming reader of trajectories in token form, one JSON object per line.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::ReadError;
use super::lines::JsonLines;
use super::token_form::parse_trajectory;
use crate::trajectory::Trajectory;

/// Opens a JSON-lines file (plain or gzip) of trajectories in token form.
///
/// A line is an object with `task_id`, `rollout_id`, `tokens` and `loss_mask` (0/1 or booleans),
/// and optionally `segment`, `segments`, `reward`, `advantage` (a number) or `advantages` (a list),
/// `old_logps`, `ref_logps` (also `old_logp`, `ref_logp`), `sampling_logps` and `weight`. Lists of
/// advantages and log-probabilities have one entry fewer than `tokens`: entry `t` belongs to token
/// `t + 1`. Other fields are ignored, blank lines are skipped, and ids may repeat.
///
/// # Errors
/// [`ReadError::Open`] if the file cannot be opened.
///
/// # Example
/// ```
/// use std::io::Cursor;
/// use tree_pack::TrajectoryReader;
///
/// let file = r#"{"task_id": "a", "rollout_id": "0", "tokens": [5, -6], "loss_mask": [0, 1]}"#;
/// let mut reader = TrajectoryReader::new("runs.jsonl", Cursor::new(file))?;
/// assert_eq!(
///     reader.next().unwrap().unwrap_err().to_string(),
///     "runs.jsonl:1: tokens[1]: got -6, expected a token id from 0 to 2147483647",
/// );
/// # Ok::<(), tree_pack::ReadError>(())
/// ```
pub fn read_trajectories(path: impl AsRef<Path>) -> Result<TrajectoryReader, ReadError> {
    Ok(TrajectoryReader {
        lines: JsonLines::open(path)?,
        vocab_size: None,
        failed: false,
    })
}

/// Reads all trajectories of several files, in order.
///
/// # Errors
/// The first error of [`read_trajectories`].
pub fn load_trajectories<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
) -> Result<Vec<Trajectory>, ReadError> {
    let mut trajectories = Vec::new();
    for path in paths {
        for trajectory in read_trajectories(path)? {
            trajectories.push(trajectory?);
        }
    }
    Ok(trajectories)
}

/// Iterator over the trajectories of a file; see [`read_trajectories`].
///
/// Keeps one line in memory. After an error in a line, the next call continues with the next line.
/// [`ReadError::Io`] and [`ReadError::LineTooLong`] end the iterator.
pub struct TrajectoryReader {
    lines: JsonLines,
    vocab_size: Option<u32>,
    failed: bool,
}

impl TrajectoryReader {
    /// Reads from `source` (plain or gzip), with `name` in errors.
    ///
    /// # Errors
    /// [`ReadError::Open`] if the first bytes cannot be read.
    pub fn new(
        name: impl Into<PathBuf>,
        source: impl Read + Send + 'static,
    ) -> Result<Self, ReadError> {
        Ok(Self {
            lines: JsonLines::new(name, source)?,
            vocab_size: None,
            failed: false,
        })
    }

    /// Refuses token ids of at least `vocab_size`.
    pub fn with_vocab_size(mut self, vocab_size: u32) -> Self {
        self.vocab_size = Some(vocab_size);
        self
    }

    /// Sets the maximum line length in bytes ([`crate::DEFAULT_MAX_LINE_BYTES`] by default); a
    /// longer line is an error.
    pub fn with_max_line_bytes(mut self, max_line_bytes: usize) -> Self {
        self.lines = self.lines.with_max_line_bytes(max_line_bytes);
        self
    }
}

impl Iterator for TrajectoryReader {
    type Item = Result<Trajectory, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        match self.lines.next_line() {
            Ok(None) => None,
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
            Ok(Some((line, json))) => {
                let parsed = parse_trajectory(json, self.vocab_size);
                Some(parsed.map_err(|error| error.at(self.lines.name(), line)))
            }
        }
    }
}
