//! Message form: one conversation per line, as the agent recorded it.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::reader::{JsonLines, ReadError};
use crate::trajectory::FieldError;

/// A recorded rollout as messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// The task. Rollouts of one task share a prefix tree.
    pub task_id: String,
    /// The rollout (one run of the agent).
    pub rollout_id: String,
    /// Messages in order; each has at least a `role`.
    pub messages: Vec<Map<String, Value>>,
    /// Schemas of the agent's tools; `None` if the line has no such field.
    pub tools: Option<Value>,
    /// Reward of the rollout.
    pub reward: Option<f32>,
    /// Advantage of the sampled tokens.
    pub advantage: Option<f32>,
    /// Weight of the rollout; 1 where not given.
    pub weight: f64,
    /// The file that contains the rollout.
    pub file: PathBuf,
    /// Its line in the file, from 1.
    pub line: u64,
}

impl Conversation {
    /// Reads one line of a file.
    ///
    /// # Errors
    /// [`ReadError::Json`], or [`ReadError::Field`] with the first field that is missing or wrong.
    /// Unknown fields are ignored.
    pub fn from_json(file: &Path, line: u64, json: &[u8]) -> Result<Self, ReadError> {
        let error = |error| ReadError::Field {
            file: file.to_owned(),
            line,
            error,
        };
        let value: Value = serde_json::from_slice(json).map_err(|problem| {
            let text = problem.to_string();
            let message = text
                .rsplit_once(" at line ")
                .map_or(text.as_str(), |(what, _)| what);
            ReadError::Json {
                file: file.to_owned(),
                line,
                column: problem.column(),
                field: None,
                message: message.to_owned(),
            }
        })?;
        let Value::Object(mut record) = value else {
            return Err(error(FieldError::new(
                "line",
                kind(&value),
                "one JSON object",
            )));
        };
        Self::from_record(file, line, &mut record).map_err(error)
    }

    fn from_record(
        file: &Path,
        line: u64,
        record: &mut Map<String, Value>,
    ) -> Result<Self, FieldError> {
        let weight = number(record, "weight")?.unwrap_or(1.0);
        if weight < 0.0 {
            return Err(FieldError::new("weight", weight, "at least 0"));
        }
        Ok(Self {
            task_id: text(record, "task_id")?,
            rollout_id: text(record, "rollout_id")?,
            messages: messages(record.remove("messages"))?,
            tools: tools(record.remove("tools"))?,
            reward: single(record, "reward")?,
            advantage: single(record, "advantage")?,
            weight,
            file: file.to_owned(),
            line,
        })
    }

    /// An error in a field of this conversation.
    pub(super) fn error(&self, error: FieldError) -> ReadError {
        ReadError::Field {
            file: self.file.clone(),
            line: self.line,
            error,
        }
    }
}

/// Reads a message file line by line, in bounded memory.
///
/// After an error in a line, the next call continues with the next line. [`ReadError::Io`] and
/// [`ReadError::LineTooLong`] end the iterator.
pub struct ConversationReader {
    lines: JsonLines,
    failed: bool,
}

impl ConversationReader {
    /// Opens a file, gzipped or not.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        Ok(Self {
            lines: JsonLines::open(path)?,
            failed: false,
        })
    }

    /// Reads from lines that are already open.
    pub fn new(lines: JsonLines) -> Self {
        Self {
            lines,
            failed: false,
        }
    }
}

impl Iterator for ConversationReader {
    type Item = Result<Conversation, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let file = self.lines.name().to_owned();
        match self.lines.next_line() {
            Ok(None) => None,
            Ok(Some((line, json))) => Some(Conversation::from_json(&file, line, json)),
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

fn text(record: &Map<String, Value>, field: &str) -> Result<String, FieldError> {
    match record.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(id)) if !id.is_f64() => Ok(id.to_string()),
        other => Err(FieldError::new(
            field,
            found(other),
            "a string or an integer",
        )),
    }
}

fn number(record: &Map<String, Value>, field: &str) -> Result<Option<f64>, FieldError> {
    match record.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => Ok(number.as_f64()),
        other => Err(FieldError::new(field, found(other), "a number or null")),
    }
}

fn single(record: &Map<String, Value>, field: &str) -> Result<Option<f32>, FieldError> {
    let Some(value) = number(record, field)? else {
        return Ok(None);
    };
    let single = value as f32;
    if !single.is_finite() {
        return Err(FieldError::new(
            field,
            value,
            "a number within the range of f32",
        ));
    }
    Ok(Some(single))
}

fn messages(value: Option<Value>) -> Result<Vec<Map<String, Value>>, FieldError> {
    let Some(Value::Array(items)) = value else {
        return Err(FieldError::new(
            "messages",
            found(value.as_ref()),
            "a list of messages",
        ));
    };
    if items.is_empty() {
        return Err(FieldError::new(
            "messages",
            "an empty list",
            "at least one message",
        ));
    }
    let message = |(index, item)| match item {
        Value::Object(message) => match message.get("role") {
            Some(Value::String(_)) => Ok(message),
            other => Err(FieldError::new(
                format!("messages[{index}].role"),
                found(other),
                "a string such as \"user\"",
            )),
        },
        other => Err(FieldError::new(
            format!("messages[{index}]"),
            kind(&other),
            "an object",
        )),
    };
    items.into_iter().enumerate().map(message).collect()
}

fn tools(value: Option<Value>) -> Result<Option<Value>, FieldError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(tools @ Value::Array(_)) => Ok(Some(tools)),
        Some(other) => Err(FieldError::new(
            "tools",
            kind(&other),
            "a list of tool schemas or null",
        )),
    }
}

fn found(value: Option<&Value>) -> &'static str {
    value.map_or("nothing", kind)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
