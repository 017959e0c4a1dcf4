//! Typed access to the fields of a JSON object.

use serde_json::{Map, Value};

use super::ConfigError;

/// The fields of a JSON object. Fields that are read are taken out; the rest is kept.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Prefix of field names in errors: `rope_scaling.` for an inner object.
    prefix: String,
}

impl Fields {
    pub(crate) fn new(map: Map<String, Value>) -> Self {
        Self {
            map,
            prefix: String::new(),
        }
    }

    /// The fields that were not taken.
    pub(crate) fn into_rest(self) -> Map<String, Value> {
        self.map
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The names of the remaining fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// Whether the field is present and null.
    pub(crate) fn is_null(&self, field: &str) -> bool {
        self.map.get(field).is_some_and(Value::is_null)
    }

    /// Inserts a field.
    pub(crate) fn insert(&mut self, field: &str, value: impl Into<Value>) {
        self.map.insert(field.to_owned(), value.into());
    }

    /// Sets a field if it is absent; a null field is kept.
    pub(crate) fn default_to(&mut self, field: &str, value: impl Into<Value>) {
        let entry = self.map.entry(field.to_owned());
        entry.or_insert_with(|| value.into());
    }

    /// The full name of a field in errors.
    pub(crate) fn path(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// A value, without taking the field; null counts as absent.
    pub(crate) fn peek(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// Takes a field; null counts as absent.
    pub(crate) fn take(&mut self, field: &str) -> Option<Value> {
        self.map
            .shift_remove(field)
            .filter(|value| !value.is_null())
    }

    pub(crate) fn typed<T>(
        &mut self,
        field: &str,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.take(field) else {
            return Ok(None);
        };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(ConfigError::invalid(&self.path(field), value, expected)),
        }
    }

    pub(crate) fn string(&mut self, field: &str) -> Result<Option<String>, ConfigError> {
        self.typed(field, "a string", |value| value.as_str().map(str::to_owned))
    }

    pub(crate) fn strings(&mut self, field: &str) -> Result<Option<Vec<String>>, ConfigError> {
        self.typed(field, "an array of strings", |value| {
            let names = value.as_array()?.iter();
            names
                .map(|name| name.as_str().map(str::to_owned))
                .collect::<Option<Vec<String>>>()
        })
    }

    pub(crate) fn object(&mut self, field: &str) -> Result<Option<Self>, ConfigError> {
        let object = self.typed(field, "an object", |value| value.as_object().cloned())?;
        Ok(object.map(|map| Self {
            map,
            prefix: format!("{}.", self.path(field)),
        }))
    }

    pub(crate) fn flag(&mut self, field: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub(crate) fn number(&mut self, field: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(field, "a finite number", finite)
    }

    pub(crate) fn required_number(&mut self, field: &str) -> Result<f64, ConfigError> {
        self.number(field)?
            .ok_or_else(|| ConfigError::missing(&self.path(field)))
    }

    pub(crate) fn optional_size(&mut self, field: &str) -> Result<Option<usize>, ConfigError> {
        // Tensors are indexed with 32 bits.
        self.typed(field, "a whole number from 1 to 2^31 - 1", |value| {
            let size = value.as_u64()?;
            (1..=i32::MAX as u64)
                .contains(&size)
                .then_some(size as usize)
        })
    }

    pub(crate) fn size(&mut self, field: &str) -> Result<usize, ConfigError> {
        self.optional_size(field)?
            .ok_or_else(|| ConfigError::missing(&self.path(field)))
    }
}

/// A finite number.
pub(crate) fn finite(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}
