//! The state of a line while it is parsed, and its errors.

use std::fmt;
use std::path::Path;

use serde::de;

use super::error::ReadError;
use crate::trajectory::{Advantage, FieldError, Trajectory};

/// An error of one line, without file and line number.
#[derive(Debug)]
pub enum LineError {
    Json {
        column: usize,
        field: Option<String>,
        message: String,
    },
    Field(FieldError),
}

impl LineError {
    pub fn at(self, file: &Path, line: u64) -> ReadError {
        let file = file.to_owned();
        match self {
            Self::Json {
                column,
                field,
                message,
            } => ReadError::Json {
                file,
                line,
                column,
                field,
                message,
            },
            Self::Field(error) => ReadError::Field { file, line, error },
        }
    }
}

/// The fields of a line that have been read, and the position of the parser.
#[derive(Default)]
pub struct Line {
    pub vocab_size: Option<u32>,
    pub task_id: Option<String>,
    pub rollout_id: Option<String>,
    pub segment: Option<u32>,
    pub segments: Option<u32>,
    pub reward: Option<f32>,
    pub tokens: Option<Vec<u32>>,
    pub loss_mask: Option<Vec<bool>>,
    pub advantage: Option<f32>,
    pub advantages: Option<Vec<f32>>,
    pub old_log_probs: Option<Vec<f32>>,
    pub ref_log_probs: Option<Vec<f32>>,
    pub sampling_log_probs: Option<Vec<f32>>,
    pub weight: Option<f64>,
    pub has_messages: bool,
    /// Bit `i` is set if `FIELDS[i]` has been read.
    pub seen: u32,
    /// Field being read, the index in its list, and the expected value.
    pub field: &'static str,
    pub index: Option<usize>,
    pub expected: String,
    /// Set if a value is valid JSON, but not the expected value.
    pub field_error: Option<FieldError>,
}

impl Line {
    pub fn into_trajectory(self) -> Result<Trajectory, FieldError> {
        let missing = |field: &str| {
            let hint = if self.has_messages {
                "the token form (this line holds messages, which must be tokenised first)"
            } else {
                "the field to be present"
            };
            FieldError::new(field, "nothing", hint)
        };
        let segment = self.segment.unwrap_or(0);
        let advantage = match (self.advantage, self.advantages) {
            (Some(_), Some(_)) => {
                return Err(FieldError::new(
                    "advantages",
                    "both advantage and advantages",
                    "one of the two",
                ));
            }
            (Some(value), None) => Some(Advantage::Trajectory(value)),
            (None, Some(values)) => Some(Advantage::Token(values)),
            (None, None) => None,
        };
        Ok(Trajectory {
            task_id: self.task_id.ok_or_else(|| missing("task_id"))?,
            rollout_id: self.rollout_id.ok_or_else(|| missing("rollout_id"))?,
            segment,
            segments: self.segments.unwrap_or(segment.saturating_add(1)),
            reward: self.reward,
            tokens: self.tokens.ok_or_else(|| missing("tokens"))?,
            loss_mask: self.loss_mask.ok_or_else(|| missing("loss_mask"))?,
            advantage,
            old_log_probs: self.old_log_probs,
            ref_log_probs: self.ref_log_probs,
            sampling_log_probs: self.sampling_log_probs,
            weight: self.weight.unwrap_or(1.0),
        })
    }

    fn location(&self) -> String {
        match self.index {
            Some(index) => format!("{}[{index}]", self.field),
            None => self.field.to_owned(),
        }
    }

    pub fn explain(self, json: &[u8], error: &serde_json::Error) -> LineError {
        let field = (!self.field.is_empty()).then(|| self.location());
        if let Some(field_error) = self.field_error {
            return LineError::Field(field_error);
        }
        let column = error.column();
        let offender = snippet(json, column);
        if let (Some(field), true) = (&field, is_not_a_number(&offender)) {
            return LineError::Field(FieldError::new(field.clone(), offender, self.expected));
        }
        let text = error.to_string();
        let message = text
            .rsplit_once(" at line ")
            .map_or(text.as_str(), |(message, _)| message);
        LineError::Json {
            column,
            field,
            message: message.to_owned(),
        }
    }

    pub fn enter(&mut self, field: &'static str, expected: impl Into<String>) {
        self.field = field;
        self.index = None;
        self.expected = expected.into();
    }

    /// Records that the value just read is not valid for the current field.
    pub fn refuse<E: de::Error>(&mut self, value: impl fmt::Display) -> E {
        self.field_error = Some(FieldError::new(
            self.location(),
            shorten(value),
            self.expected.clone(),
        ));
        E::custom("wrong value")
    }
}

/// Whether the text is a literal that Python or JavaScript writes for a number that JSON cannot
/// express.
fn is_not_a_number(text: &str) -> bool {
    let text = text.trim_start_matches('-');
    ["NaN", "nan", "Infinity", "inf"].contains(&text)
}

/// The word of `json` around byte `column` (from 1).
fn snippet(json: &[u8], column: usize) -> String {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let at = column.saturating_sub(1).min(json.len());
    let start = json[..at]
        .iter()
        .rposition(|byte| !is_part(byte))
        .map_or(0, |index| index + 1);
    let length = json[start..]
        .iter()
        .take_while(|byte| is_part(byte))
        .count()
        .min(40);
    String::from_utf8_lossy(&json[start..start + length]).into_owned()
}

fn shorten(value: impl fmt::Display) -> String {
    const LONGEST: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
