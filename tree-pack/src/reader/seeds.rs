//! Deserializers of the fields of a line.

use std::fmt;

use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::json_value::{Value, ValueSeed};
use super::line::Line;
use crate::trajectory::MAX_TOKEN_ID;

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

/// Alternative names of fields, with the names in `FIELDS`.
const ALIASES: [(&str, &str); 2] = [("old_logp", "old_logps"), ("ref_logp", "ref_logps")];

const NUMBER: &str = "a finite number";

/// Reads the object of a line.
pub struct LineSeed<'a>(pub &'a mut Line);

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
