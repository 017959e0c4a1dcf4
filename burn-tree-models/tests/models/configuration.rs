//! Reading and writing `config.json`, for all families.

use burn_tree_models::{ConfigError, ModelConfig};
use serde_json::{Value, json};

use crate::{MODELS, config};

/// A small model of any family: the fields that all of them read.
pub fn minimal(model_type: &str) -> Value {
    json!({
        "model_type": model_type,
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 10000.0,
    })
}

pub fn read(model_type: &str, fields: Value) -> Result<ModelConfig, ConfigError> {
    let mut json = minimal(model_type);
    for (field, value) in fields.as_object().unwrap() {
        json[field] = value.clone();
    }
    ModelConfig::from_json(json)
}

#[test]
fn fixtures_survive_writing() {
    for model in MODELS {
        let config = config(model);
        let written = config.to_json();
        let read = ModelConfig::from_json(written.clone()).unwrap();
        assert_eq!(read, config, "{model}");
        // Writing it again gives the same bytes.
        assert_eq!(read.to_json(), written);
        // Fields that do not affect the computation are kept.
        assert!(read.other.contains_key("max_position_embeddings"));
    }
}

/// The model type selects the family; an unknown one is reported with the known ones.
#[test]
fn model_types_that_are_not_known() {
    let message = read("mistral", json!({})).unwrap_err().to_string();
    assert!(
        message.starts_with("field `model_type` is mistral"),
        "{message}"
    );
    assert!(message.contains("llama, qwen2"), "{message}");
    for value in [json!(null), json!(3)] {
        let message = read("llama", json!({ "model_type": value }));
        assert!(
            message.unwrap_err().to_string().contains("`model_type`"),
            "{value}"
        );
    }
}

/// Unsupported values of every field, in every family.
#[test]
fn what_is_not_implemented_is_refused_by_name() {
    for model_type in ["qwen3", "llama", "qwen2"] {
        for (field, value) in [
            ("attention_dropout", json!(0.1)),
            ("hidden_act", json!("gelu")),
            ("quantization_config", json!({ "bits": 4 })),
            ("partial_rotary_factor", json!(0.5)),
            (
                "layer_types",
                json!(["full_attention", "linear_attention", "full_attention"]),
            ),
        ] {
            let error = read(model_type, json!({ field: value })).unwrap_err();
            assert!(
                matches!(error, ConfigError::Unsupported { .. }),
                "{field}: {error}"
            );
            let message = error.to_string();
            assert!(
                message.starts_with(&format!("field `{field}` is ")),
                "{message}"
            );
        }
    }
}

#[test]
fn values_that_make_no_sense_are_named() {
    for model_type in ["qwen3", "llama", "qwen2"] {
        for (field, value, expected) in [
            ("hidden_size", json!(0), "is 0, expected a whole number"),
            ("num_hidden_layers", json!(null), "is missing"),
            ("intermediate_size", json!(null), "is missing"),
            ("vocab_size", json!(-1), "is -1, expected a whole number"),
            (
                "num_key_value_heads",
                json!(3),
                "a divisor of num_attention_heads",
            ),
            ("head_dim", json!(7), "is 7, expected an even number"),
            ("rms_norm_eps", json!(0), "a positive number"),
            ("rope_theta", json!(0), "a positive number"),
            ("tie_word_embeddings", json!("yes"), "true or false"),
            (
                "layer_types",
                json!(["full_attention"]),
                "one entry per layer",
            ),
        ] {
            let message = read(model_type, json!({ field: value })).unwrap_err();
            let message = message.to_string();
            assert!(
                message.starts_with(&format!("field `{field}` ")) && message.contains(expected),
                "{message}"
            );
        }
    }
}

/// If the heads do not divide the hidden size, `head_dim` is required.
#[test]
fn heads_of_no_size() {
    for model_type in ["llama", "qwen2"] {
        let fields = json!({ "head_dim": null, "hidden_size": 62 });
        let message = read(model_type, fields).unwrap_err().to_string();
        assert!(message.contains("`hidden_size` is 62"), "{message}");
    }
}
