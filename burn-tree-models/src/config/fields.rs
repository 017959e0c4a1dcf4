//! Fields of a JSON object by type.

use serde_json::{Map, Value};

use super::ConfigError;

/// Fields of a JSON object; those that are taken out are understood, the rest is kept.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// What names of fields begin with in errors: `rope_scaling.` of an inner object.
    prefix: String,
}

impl Fields {
    pub(crate) fn new(map: Map<String, Value>) -> Self {
        Self {
            map,
            prefix: String::new(),
        }
    }

    /// Those that were not taken out.
    pub(crate) fn into_rest(self) -> Map<String, Value> {
        self.map
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Names of the fields that are left.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// Whether the field is there and null.
    pub(crate) fn is_null(&self, field: &str) -> bool {
        self.map.get(field).is_some_and(Value::is_null)
    }

    /// Puts a field in, or back.
    pub(crate) fn insert(&mut self, field: &str, value: impl Into<Value>) {
        self.map.insert(field.to_owned(), value.into());
    }

    /// Sets a field that is absent; one that is null stays so.
    pub(crate) fn default_to(&mut self, field: &str, value: impl Into<Value>) {
        let entry = self.map.entry(field.to_owned());
        entry.or_insert_with(|| value.into());
    }

    /// The name of a field in errors.
    pub(crate) fn path(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// A value, while its field stays; JSON null counts as absent.
    pub(crate) fn peek(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// Takes a field out; JSON null counts as absent.
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
        // Sizes index tensors with 32 bits.
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

/// A number that is neither infinite nor NaN.
pub(crate) fn finite(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}
