//! The fields of RoPE in `config.json`, in both formats: `rope_parameters`, or `rope_theta` and
//! `rope_scaling`.

use serde_json::{Map, Value, json};

use super::fields::finite;
use super::{ConfigError, Fields, Llama3Scaling, ModelConfig, RopeScaling, YarnScaling};

/// RoPE as read from a configuration.
pub(crate) struct Rope {
    pub(crate) theta: Option<f64>,
    pub(crate) partial_rotary_factor: Option<f64>,
    pub(crate) scaling: RopeScaling,
}

/// Fields of a scaling that do not change the embedding of text.
const INERT: [&str; 3] = ["finetuned", "mrope_section", "mrope_interleaved"];

/// Takes the fields of RoPE. If both formats are present, the older one counts unless it is empty,
/// as in Hugging Face's library.
pub(super) fn read(fields: &mut Fields) -> Result<Rope, ConfigError> {
    let theta = fields.number("rope_theta")?;
    let factor = fields.number("partial_rotary_factor")?;
    let older = fields.object("rope_scaling")?;
    let newer = fields.object("rope_parameters")?;
    let older = older.filter(|object| !object.is_empty());
    let Some(mut object) = older.or(newer) else {
        return Ok(Rope {
            theta,
            partial_rotary_factor: factor,
            scaling: RopeScaling::None,
        });
    };
    let theta = object.number("rope_theta")?.or(theta);
    let partial_rotary_factor = object.number("partial_rotary_factor")?.or(factor);
    let (rope_type, older_type) = (object.string("rope_type")?, object.string("type")?);
    let kind = rope_type
        .or(older_type)
        .unwrap_or_else(|| "default".to_owned());
    let scaling = match kind.as_str() {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear {
            factor: positive(&mut object, "factor")?,
        },
        "llama3" => RopeScaling::Llama3(read_llama3(&mut object, fields)?),
        "yarn" => RopeScaling::Yarn(read_yarn(&mut object, fields)?),
        _ => {
            return Err(ConfigError::unsupported(
                &object.path("rope_type"),
                kind,
                "default, linear, llama3 and yarn are",
            ));
        }
    };
    if scaling != RopeScaling::None
        && let Some(name) = object.names().find(|name| !INERT.contains(name))
    {
        let value = object.peek(name).unwrap_or(&Value::Null);
        let reason = format!("the scaling {kind} has no such number");
        return Err(ConfigError::unsupported(&object.path(name), value, reason));
    }
    // The interleaving of image positions, which does not affect text.
    if !object.is_empty() {
        fields.insert("rope_parameters", object.into_rest());
    }
    Ok(Rope {
        theta,
        partial_rotary_factor,
        scaling,
    })
}

fn read_llama3(object: &mut Fields, model: &mut Fields) -> Result<Llama3Scaling, ConfigError> {
    let original = original_length(object, model)?;
    let scaling = Llama3Scaling {
        factor: positive(object, "factor")?,
        low_freq_factor: positive(object, "low_freq_factor")?,
        high_freq_factor: positive(object, "high_freq_factor")?,
        original_max_position_embeddings: original,
    };
    if scaling.high_freq_factor <= scaling.low_freq_factor {
        return Err(ConfigError::invalid(
            &object.path("high_freq_factor"),
            scaling.high_freq_factor,
            "more than low_freq_factor",
        ));
    }
    Ok(scaling)
}

fn read_yarn(object: &mut Fields, model: &mut Fields) -> Result<YarnScaling, ConfigError> {
    let original = original_length(object, model)?;
    let factor = match (object.is_null("factor"), length(model)) {
        (true, Some(length)) => {
            object.take("factor");
            length / original
        }
        _ => positive(object, "factor")?,
    };
    let given = match object.peek("attention_factor") {
        Some(_) => Some(positive(object, "attention_factor")?),
        None => {
            object.take("attention_factor");
            None
        }
    };
    let nonzero = |number: Option<f64>| number.filter(|&number| number != 0.0);
    let mscale = nonzero(object.number("mscale")?);
    let mscale_all_dim = nonzero(object.number("mscale_all_dim")?);
    let attention_factor = match (given, mscale, mscale_all_dim) {
        (Some(given), _, _) => given,
        (None, Some(one), Some(all)) => YarnScaling::attention_factor_of(factor, one, all),
        (None, _, _) => YarnScaling::default_attention_factor(factor),
    };
    // Null means false here, not absent.
    let null = object.is_null("truncate");
    Ok(YarnScaling {
        factor,
        original_max_position_embeddings: original,
        beta_fast: nonzero(object.number("beta_fast")?).unwrap_or(32.0),
        beta_slow: nonzero(object.number("beta_slow")?).unwrap_or(1.0),
        truncate: object.flag("truncate")?.unwrap_or(!null),
        attention_factor,
    })
}

fn positive(object: &mut Fields, field: &str) -> Result<f64, ConfigError> {
    let number = object.required_number(field)?;
    match number > 0.0 {
        true => Ok(number),
        false => Err(ConfigError::invalid(
            &object.path(field),
            number,
            "a positive number",
        )),
    }
}

/// The original context length before scaling: from the model, from the scaling, or the context
/// length of the model.
fn original_length(object: &mut Fields, model: &mut Fields) -> Result<f64, ConfigError> {
    const FIELD: &str = "original_max_position_embeddings";
    let own = model.optional_size(FIELD)?;
    let inner = object.optional_size(FIELD)?;
    let length = own.or(inner).map(|length| length as f64).or(length(model));
    length.ok_or_else(|| ConfigError::missing(&object.path(FIELD)))
}

fn length(model: &Fields) -> Option<f64> {
    model.peek("max_position_embeddings").and_then(finite)
}

/// Writes both formats, for old and new readers.
pub(super) fn write(config: &ModelConfig, json: &mut Map<String, Value>) {
    let mut object = Map::new();
    let mut set = |field: &str, value: Value| object.insert(field.to_owned(), value);
    let number = |number: f64| json!(number);
    match config.rope_scaling {
        RopeScaling::None => {
            set("rope_type", json!("default"));
        }
        RopeScaling::Linear { factor } => {
            set("rope_type", json!("linear"));
            set("factor", number(factor));
        }
        RopeScaling::Llama3(scaling) => {
            let length = scaling.original_max_position_embeddings;
            set("rope_type", json!("llama3"));
            set("factor", number(scaling.factor));
            set("low_freq_factor", number(scaling.low_freq_factor));
            set("high_freq_factor", number(scaling.high_freq_factor));
            set("original_max_position_embeddings", json!(length as u64));
        }
        RopeScaling::Yarn(scaling) => {
            let length = scaling.original_max_position_embeddings;
            set("rope_type", json!("yarn"));
            set("factor", number(scaling.factor));
            set("original_max_position_embeddings", json!(length as u64));
            set("beta_fast", number(scaling.beta_fast));
            set("beta_slow", number(scaling.beta_slow));
            set("truncate", json!(scaling.truncate));
            set("attention_factor", number(scaling.attention_factor));
        }
    }
    if config.rotary_dim != config.head_dim {
        let share = config.rotary_dim as f64 / config.head_dim as f64;
        set("partial_rotary_factor", json!(share));
    }
    if let Some(Value::Object(kept)) = config.other.get("rope_parameters") {
        object.extend(kept.clone());
    }
    json.insert("rope_theta".to_owned(), json!(config.rope_theta));
    if config.rope_scaling != RopeScaling::None {
        json.insert("rope_scaling".to_owned(), Value::Object(object.clone()));
    }
    object.insert("rope_theta".to_owned(), json!(config.rope_theta));
    json.insert("rope_parameters".to_owned(), Value::Object(object));
}
