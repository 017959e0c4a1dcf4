//! What a run measures, one JSON object a line in `metrics.jsonl`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use burn_tree_train::StepCounts;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::objective::Metrics;
use crate::run::atomic;

/// One optimizer step of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Optimizer step, counted from 1.
    pub step: usize,
    /// Pass over the data, counted from 1.
    pub epoch: usize,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// The step on trees, unless the run is flat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<PassRecord>,
    /// The step on separate trajectories, if it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flat: Option<PassRecord>,
    /// Both compared, if both were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<ComparisonRecord>,
    /// Loss on the validation tasks after the step, where it was evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
}

/// A forward and backward pass over the packs of a step, clipping and the optimizer's update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassRecord {
    /// Loss before the update, as objective and aggregation define it.
    pub loss: f64,
    /// Against what deviations of the loss are measured, if not the loss: the sum of the absolute
    /// values of its terms, where they have both signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Global norm of the gradients before clipping.
    pub gradient_norm: f64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// What was predicted for it, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_seconds: Option<f64>,
    /// Most memory reserved on the device so far, where it tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// Packs the step was split into.
    pub packs: usize,
    /// Tokens computed, without padding.
    pub tokens: u64,
    /// (query, key) pairs of one head.
    pub visible_pairs: u64,
    /// Rows projected onto the vocabulary.
    pub projected_rows: u64,
    /// Predictions in the loss.
    pub predictions: u64,
    /// Model FLOPs of the step.
    pub flops: f64,
    /// Seconds spent before the step on log-probabilities without gradients that it needs, if it
    /// began with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_prob_seconds: Option<f64>,
    /// What the objective measured.
    #[serde(default, skip_serializing_if = "Metrics::is_empty")]
    pub metrics: Metrics,
}

impl PassRecord {
    /// What the step worked on.
    pub fn counts(&self) -> StepCounts {
        StepCounts {
            tokens: self.tokens,
            visible_pairs: self.visible_pairs,
            projected_rows: self.projected_rows,
            predictions: self.predictions,
        }
    }
}

/// A step on trees against the same step on separate trajectories.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparisonRecord {
    /// `|loss_tree - loss_flat|` over the [scale](PassRecord::loss_scale) of the flat loss,
    /// `|loss_flat|` if there is none.
    pub relative_loss_deviation: f64,
    /// `|norm_tree - norm_flat| / norm_flat` of the gradients' global norms.
    #[serde(default)]
    pub relative_gradient_deviation: f64,
    /// Seconds of the flat step over seconds of the tree step.
    pub speedup: f64,
    /// Flat tokens over tree tokens.
    pub token_bound: f64,
    /// Flat FLOPs over tree FLOPs.
    pub step_bound: f64,
}

/// A metrics file that cannot be written or continued.
#[derive(Debug, Error)]
pub enum MetricsError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system reports.
        source: io::Error,
    },
    /// A line of the file to be continued is not a step record.
    #[error("{}:{line}: not a step record: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// Writes step records, each flushed as it comes.
#[derive(Debug)]
pub struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Starts a new file, replacing one that is there.
    pub fn create(path: &Path) -> Result<Self, MetricsError> {
        let file = File::create(path).map_err(io_error(path))?;
        Ok(Self {
            path: path.into(),
            file,
        })
    }

    /// Continues the file of a run that is resumed after `completed_steps` steps, and returns its
    /// records. Later lines, written after the checkpoint was taken, are dropped, as is a line
    /// that the interruption left incomplete. Without a file a new one is started.
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

/// Reads a metrics file. A last line without its newline was cut off and is left out.
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
            tree: Some(PassRecord {
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
        // The interruption cut the next line off.
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
