//! Fields of a JSON object by type.

use serde_json::{Map, Value};

use super::ConfigError;

/// Fields of a JSON object; those that are taken out are understood, the rest is kept.
pub(super) struct Fields(pub(super) Map<String, Value>);

impl Fields {
    /// Takes a field out; JSON null counts as absent.
    pub(super) fn take(&mut self, field: &'static str) -> Option<Value> {
        self.0.shift_remove(field).filter(|value| !value.is_null())
    }

    pub(super) fn typed<T>(
        &mut self,
        field: &'static str,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.take(field) else {
            return Ok(None);
        };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(ConfigError::Invalid {
                field,
                value: value.to_string(),
                expected,
            }),
        }
    }

    pub(super) fn string(&mut self, field: &'static str) -> Result<Option<String>, ConfigError> {
        self.typed(field, "a string", |value| value.as_str().map(str::to_owned))
    }

    pub(super) fn strings(
        &mut self,
        field: &'static str,
    ) -> Result<Option<Vec<String>>, ConfigError> {
        self.typed(field, "an array of strings", |value| {
            let names = value.as_array()?.iter();
            names
                .map(|name| name.as_str().map(str::to_owned))
                .collect::<Option<Vec<String>>>()
        })
    }

    pub(super) fn object(&mut self, field: &'static str) -> Result<Option<Self>, ConfigError> {
        let object = self.typed(field, "an object", |value| value.as_object().cloned())?;
        Ok(object.map(Self))
    }

    pub(super) fn flag(&mut self, field: &'static str) -> Result<Option<bool>, ConfigError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub(super) fn number(&mut self, field: &'static str) -> Result<Option<f64>, ConfigError> {
        self.typed(field, "a finite number", |value| {
            value.as_f64().filter(|number| number.is_finite())
        })
    }

    pub(super) fn optional_size(
        &mut self,
        field: &'static str,
    ) -> Result<Option<usize>, ConfigError> {
        // Sizes index tensors with 32 bits.
        self.typed(field, "a whole number from 1 to 2^31 - 1", |value| {
            let size = value.as_u64()?;
            (1..=i32::MAX as u64)
                .contains(&size)
                .then_some(size as usize)
        })
    }

    pub(super) fn size(&mut self, field: &'static str) -> Result<usize, ConfigError> {
        self.optional_size(field)?
            .ok_or(ConfigError::Missing { field })
    }
}
