//! One line of token form: a JSON object with the fields of a trajectory.

use std::fmt;
use std::path::Path;

use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::ReadError;
use super::json_value::{Value, ValueSeed};
use crate::trajectory::{Advantage, FieldError, MAX_TOKEN_ID, Trajectory};

/// An error of one line, before it is known where the line is.
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

/// Parses one line and checks what it holds.
pub fn parse_trajectory(json: &[u8], vocab_size: Option<u32>) -> Result<Trajectory, LineError> {
    let mut line = Line {
        vocab_size,
        ..Line::default()
    };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let parsed = LineSeed(&mut line).deserialize(&mut deserializer);
    if let Err(error) = parsed.and_then(|()| deserializer.end()) {
        return Err(line.explain(json, &error));
    }
    let trajectory = line.into_trajectory().map_err(LineError::Field)?;
    trajectory.validate().map_err(LineError::Field)?;
    Ok(trajectory)
}

/// What has been read of a line so far, and where the parser is.
#[derive(Default)]
struct Line {
    vocab_size: Option<u32>,
    task_id: Option<String>,
    rollout_id: Option<String>,
    segment: Option<u32>,
    segments: Option<u32>,
    reward: Option<f32>,
    tokens: Option<Vec<u32>>,
    loss_mask: Option<Vec<bool>>,
    advantage: Option<f32>,
    advantages: Option<Vec<f32>>,
    old_log_probs: Option<Vec<f32>>,
    ref_log_probs: Option<Vec<f32>>,
    sampling_log_probs: Option<Vec<f32>>,
    weight: Option<f64>,
    has_messages: bool,
    /// Bit `i` is set once `FIELDS[i]` has been met.
    seen: u32,
    /// Field being read, the index in its list, and what it must hold.
    field: &'static str,
    index: Option<usize>,
    expected: String,
    /// Set where a value was JSON, but not what is expected.
    field_error: Option<FieldError>,
}

const FIELDS: [&str; 14] = [
    "task_id",
    "rollout_id",
    "segment",
    "segments",
    "reward",
    "tokens",
    "loss_mask",
    "advantage",
    "advantages",
    "old_logps",
    "ref_logps",
    "sampling_logps",
    "weight",
    "messages",
];

/// Other names of fields, and `FIELDS`' name.
const ALIASES: [(&str, &str); 2] = [("old_logp", "old_logps"), ("ref_logp", "ref_logps")];

const NUMBER: &str = "a finite number";

impl Line {
    fn into_trajectory(self) -> Result<Trajectory, FieldError> {
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

    fn explain(self, json: &[u8], error: &serde_json::Error) -> LineError {
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

    fn enter(&mut self, field: &'static str, expected: impl Into<String>) {
        self.field = field;
        self.index = None;
        self.expected = expected.into();
    }

    /// Notes that the value just read is not what the current field holds.
    fn refuse<E: de::Error>(&mut self, value: impl fmt::Display) -> E {
        self.field_error = Some(FieldError::new(
            self.location(),
            shorten(value),
            self.expected.clone(),
        ));
        E::custom("wrong value")
    }
}

/// The literals that Python and JavaScript write for what JSON cannot express.
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

struct LineSeed<'a>(&'a mut Line);

impl<'de> DeserializeSeed<'de> for LineSeed<'_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for LineSeed<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with the fields of a trajectory")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let line = self.0;
        while let Some(name) = map.next_key_seed(FieldName)? {
            let Some(field) = name else {
                line.enter("", "");
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let name = FIELDS[field];
            line.enter(name, "one value of this name");
            if line.seen & (1 << field) != 0 {
                return Err(line.refuse("the field a second time"));
            }
            line.seen |= 1 << field;
            match name {
                "task_id" => line.task_id = Some(text(line, &mut map)?),
                "rollout_id" => line.rollout_id = Some(text(line, &mut map)?),
                "segment" => line.segment = count(line, &mut map)?,
                "segments" => line.segments = count(line, &mut map)?,
                "reward" => line.reward = number(line, &mut map)?.map(|value| value as f32),
                "advantage" => line.advantage = number(line, &mut map)?.map(|value| value as f32),
                "weight" => line.weight = number(line, &mut map)?,
                "tokens" => {
                    let largest = match line.vocab_size {
                        Some(size) => size.saturating_sub(1).min(MAX_TOKEN_ID),
                        None => MAX_TOKEN_ID,
                    };
                    line.expected = format!("a token id from 0 to {largest}");
                    let token = |value: &Value| match value {
                        Value::Unsigned(id) if *id <= u64::from(largest) => Some(*id as u32),
                        _ => None,
                    };
                    line.tokens = list(line, &mut map, token)?;
                }
                "loss_mask" => {
                    line.expected = "0, 1, true or false".to_owned();
                    line.loss_mask = list(line, &mut map, |value| match value {
                        Value::Unsigned(0) | Value::Bool(false) => Some(false),
                        Value::Unsigned(1) | Value::Bool(true) => Some(true),
                        _ => None,
                    })?;
                }
                "advantages" => line.advantages = numbers(line, &mut map)?,
                "old_logps" => line.old_log_probs = numbers(line, &mut map)?,
                "ref_logps" => line.ref_log_probs = numbers(line, &mut map)?,
                "sampling_logps" => line.sampling_log_probs = numbers(line, &mut map)?,
                _ => {
                    line.has_messages = true;
                    map.next_value::<IgnoredAny>()?;
                }
            }
            line.enter("", "");
        }
        Ok(())
    }
}

fn text<'de, A: MapAccess<'de>>(line: &mut Line, map: &mut A) -> Result<String, A::Error> {
    line.expected = "a string or an integer".to_owned();
    match map.next_value_seed(ValueSeed)? {
        Value::Text(text) => Ok(text),
        Value::Unsigned(id) => Ok(id.to_string()),
        Value::Signed(id) => Ok(id.to_string()),
        other => Err(line.refuse(other)),
    }
}

fn count<'de, A: MapAccess<'de>>(line: &mut Line, map: &mut A) -> Result<Option<u32>, A::Error> {
    line.expected = format!("an integer from 0 to {}", u32::MAX);
    match map.next_value_seed(ValueSeed)? {
        Value::Null => Ok(None),
        Value::Unsigned(value) if value <= u64::from(u32::MAX) => Ok(Some(value as u32)),
        other => Err(line.refuse(other)),
    }
}

fn number<'de, A: MapAccess<'de>>(line: &mut Line, map: &mut A) -> Result<Option<f64>, A::Error> {
    line.expected = NUMBER.to_owned();
    match map.next_value_seed(ValueSeed)? {
        Value::Null => Ok(None),
        value => match value.as_number() {
            Some(number) => Ok(Some(number)),
            None => Err(line.refuse(value)),
        },
    }
}

fn numbers<'de, A: MapAccess<'de>>(
    line: &mut Line,
    map: &mut A,
) -> Result<Option<Vec<f32>>, A::Error> {
    line.expected = NUMBER.to_owned();
    list(line, map, |value| {
        value.as_number().map(|number| number as f32)
    })
}

fn list<'de, A: MapAccess<'de>, T>(
    line: &mut Line,
    map: &mut A,
    convert: impl Fn(&Value) -> Option<T>,
) -> Result<Option<Vec<T>>, A::Error> {
    map.next_value_seed(ListSeed { line, convert })
}

/// Position of a known field in `FIELDS`.
struct FieldName;

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Option<usize>;

    fn deserialize<D: de::Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_identifier(self)
    }
}

impl Visitor<'_> for FieldName {
    type Value = Option<usize>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a field name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        let name = ALIASES
            .iter()
            .find(|(alias, _)| *alias == name)
            .map_or(name, |alias| alias.1);
        Ok(FIELDS.iter().position(|field| *field == name))
    }
}

/// A list of values that `convert` accepts, or null.
struct ListSeed<'a, F> {
    line: &'a mut Line,
    convert: F,
}

impl<'de, T, F: Fn(&Value) -> Option<T>> DeserializeSeed<'de> for ListSeed<'_, F> {
    type Value = Option<Vec<T>>;

    fn deserialize<D: de::Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<F> ListSeed<'_, F> {
    fn refuse<T, E: de::Error>(self, value: Value) -> Result<T, E> {
        self.line.expected = format!("a list, each entry {}", self.line.expected);
        Err(self.line.refuse(value))
    }
}

impl<'de, T, F: Fn(&Value) -> Option<T>> Visitor<'de> for ListSeed<'_, F> {
    type Value = Option<Vec<T>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        loop {
            self.line.index = Some(values.len());
            let Some(value) = list.next_element_seed(ValueSeed)? else {
                break;
            };
            match (self.convert)(&value) {
                Some(converted) => values.push(converted),
                None => return Err(self.line.refuse(value)),
            }
        }
        values.shrink_to_fit();
        Ok(Some(values))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        self.refuse(Value::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        self.refuse(Value::Unsigned(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        self.refuse(Value::Signed(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        self.refuse(Value::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        self.refuse(Value::Text(value.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.refuse(Value::Object)
    }
}
