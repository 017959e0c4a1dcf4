//! The metrics of a run: one JSON object per step in `metrics.jsonl`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use burn_tree_train::StepCounts;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::loss::Metrics;
use crate::run::atomic;

/// The record of one optimizer step of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Optimizer step, counted from 1.
    pub step: usize,
    /// Epoch, counted from 1.
    pub epoch: usize,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// The variant on trees, unless the run is flat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<VariantRecord>,
    /// The variant on separate trajectories, if the run has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flat: Option<VariantRecord>,
    /// The comparison, if the run has both variants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<ComparisonRecord>,
    /// Loss on the validation tasks after the step, if evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
}

/// The record of one step of one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariantRecord {
    /// Loss before the update.
    pub loss: f64,
    /// The scale for deviations of the loss, if it is not the loss itself: the sum of the absolute
    /// values of its terms, where they have both signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Global norm of the gradients before clipping.
    pub gradient_norm: f64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Predicted seconds, if available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_seconds: Option<f64>,
    /// Peak memory reserved on the device so far, if the device reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// Number of packs.
    pub packs: usize,
    /// Tokens computed, without padding.
    pub tokens: u64,
    /// Visible (query, key) pairs of one head.
    pub visible_pairs: u64,
    /// Rows projected onto the vocabulary.
    pub projected_rows: u64,
    /// Predictions in the loss.
    pub predictions: u64,
    /// Model FLOPs of the step.
    pub flops: f64,
    /// Seconds spent on log-probabilities at the beginning of a batch, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_prob_seconds: Option<f64>,
    /// Metrics of the loss.
    #[serde(default, skip_serializing_if = "Metrics::is_empty")]
    pub metrics: Metrics,
}

impl VariantRecord {
    /// The counts of the step.
    pub fn counts(&self) -> StepCounts {
        StepCounts {
            tokens: self.tokens,
            visible_pairs: self.visible_pairs,
            projected_rows: self.projected_rows,
            predictions: self.predictions,
        }
    }
}

/// The comparison of a step on trees with the same step on separate trajectories.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparisonRecord {
    /// `|loss_tree - loss_flat|` over the [scale](VariantRecord::loss_scale) of the flat loss, or
    /// over `|loss_flat|` if it has no scale.
    pub relative_loss_deviation: f64,
    /// `|norm_tree - norm_flat| / norm_flat` of the global gradient norms.
    #[serde(default)]
    pub relative_gradient_deviation: f64,
    /// Seconds of the flat step over seconds of the tree step.
    pub speedup: f64,
    /// Flat tokens over tree tokens.
    pub token_bound: f64,
    /// Flat FLOPs over tree FLOPs.
    pub step_bound: f64,
}

/// Errors of the metrics file.
#[derive(Debug, Error)]
pub enum MetricsError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A line of the file is not a step record.
    #[error("{}:{line}: not a step record: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// The cause.
        source: serde_json::Error,
    },
}

/// Writes step records and flushes after each.
#[derive(Debug)]
pub struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Creates a new file, replacing an existing one.
    pub fn create(path: &Path) -> Result<Self, MetricsError> {
        let file = File::create(path).map_err(io_error(path))?;
        Ok(Self {
            path: path.into(),
            file,
        })
    }

    /// Continues the file of a run that is resumed after `completed_steps` steps, and returns its
    /// records. Lines after the checkpoint are dropped, as is an incomplete last line. Creates the
    /// file if it does not exist.
    pub fn resume(
        path: &Path,
        completed_steps: usize,
    ) -> Result<(Self, Vec<StepRecord>), MetricsError> {
        if !path.exists() {
            return Ok((Self::create(path)?, Vec::new()));
        }
        let records: Vec<StepRecord> = read_records(path)?
            .into_iter()
            .take_while(|record| record.step <= completed_steps)
            .collect();
        let mut kept = atomic::temporary_file_for(path).map_err(io_error(path))?;
        for record in &records {
            write_line(kept.as_file_mut(), record).map_err(io_error(path))?;
        }
        kept.persist(path)
            .map_err(|error| io_error(path)(error.error))?;
        let file = OpenOptions::new()
            .append(true)
            .open(path)
            .map_err(io_error(path))?;
        Ok((
            Self {
                path: path.into(),
                file,
            },
            records,
        ))
    }

    /// Appends one record.
    pub fn write(&mut self, record: &StepRecord) -> Result<(), MetricsError> {
        write_line(&mut self.file, record).map_err(io_error(&self.path))
    }
}

/// Reads a metrics file. A last line without a newline is incomplete and dropped.
pub fn read_records(path: &Path) -> Result<Vec<StepRecord>, MetricsError> {
    let mut reader = BufReader::new(File::open(path).map_err(io_error(path))?);
    let mut records = Vec::new();
    let mut text = String::new();
    loop {
        text.clear();
        reader.read_line(&mut text).map_err(io_error(path))?;
        if !text.ends_with('\n') {
            return Ok(records);
        }
        let record = serde_json::from_str(&text).map_err(|source| MetricsError::Line {
            path: path.into(),
            line: records.len() + 1,
            source,
        })?;
        records.push(record);
    }
}

fn write_line(file: &mut File, record: &StepRecord) -> io::Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    file.write_all(&line)
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> MetricsError + '_ {
    move |source| MetricsError::Io {
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: usize) -> StepRecord {
        StepRecord {
            step,
            epoch: 1,
            learning_rate: 1e-3,
            tree: Some(VariantRecord {
                loss: 1.0 / step as f64,
                loss_scale: None,
                gradient_norm: 0.1,
                seconds: 2.5,
                packs: 1,
                tokens: 10,
                visible_pairs: 55,
                projected_rows: 4,
                predictions: 4,
                flops: 1e9,
                log_prob_seconds: None,
                predicted_seconds: None,
                reserved_bytes: None,
                metrics: Metrics::from([("clip_fraction".to_string(), 0.25)]),
            }),
            flat: None,
            comparison: None,
            validation_loss: None,
        }
    }

    #[test]
    fn resuming_drops_what_came_after_the_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut log = MetricsLog::create(&path).unwrap();
        for step in 1..=5 {
            log.write(&record(step)).unwrap();
        }
        // The interruption truncated the last line.
        log.file.write_all(br#"{"step":6,"epo"#).unwrap();

        let (mut log, kept) = MetricsLog::resume(&path, 3).unwrap();
        assert_eq!(kept, [record(1), record(2), record(3)]);
        log.write(&record(4)).unwrap();
        assert_eq!(
            read_records(&path).unwrap(),
            (1..=4).map(record).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_foreign_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(&path, "{\"step\":\"one\"}\n").unwrap();
        let error = MetricsLog::resume(&path, 3).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl:1"), "{error}");
    }
}
