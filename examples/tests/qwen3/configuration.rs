//! Reading and writing `config.json`.

use serde_json::{Value, json};
use tree_training_examples::qwen3::{ConfigError, Qwen3Config};

use crate::config;

fn dense() -> Value {
    json!({
        "model_type": "qwen3",
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 10000.0,
    })
}

fn with(field: &str, value: Value) -> Result<Qwen3Config, ConfigError> {
    let mut json = dense();
    json[field] = value;
    Qwen3Config::from_json(json)
}

#[test]
fn fixtures_survive_writing() {
    for model in ["qwen3_dense", "qwen3_moe"] {
        let config = config(model);
        let read = Qwen3Config::from_json(config.to_json()).unwrap();
        assert_eq!(read, config);
        assert_eq!(read.rope_theta, 1e6);
        // Fields that do not concern the computation are kept.
        assert_eq!(read.other["max_position_embeddings"], json!(1024));
    }
    assert_eq!(config("qwen3_moe").moe.unwrap().num_experts, 8);
    assert!(config("qwen3_moe").tie_word_embeddings);
}

#[test]
fn both_places_of_the_rotary_base_are_read() {
    let mut json = dense();
    json.as_object_mut().unwrap().remove("rope_theta");
    let missing = Qwen3Config::from_json(json.clone()).unwrap_err();
    assert_eq!(missing.to_string(), "field `rope_theta` is missing");
    json["rope_parameters"] = json!({ "rope_type": "default", "rope_theta": 5e5 });
    assert_eq!(Qwen3Config::from_json(json).unwrap().rope_theta, 5e5);
    assert_eq!(Qwen3Config::from_json(dense()).unwrap().rope_theta, 1e4);
    assert!(with("rope_scaling", Value::Null).is_ok());
}

#[test]
fn what_is_not_implemented_is_refused() {
    let refused = [
        ("model_type", json!("llama")),
        ("attention_bias", json!(true)),
        ("attention_dropout", json!(0.1)),
        ("hidden_act", json!("gelu")),
        ("rope_scaling", json!({ "type": "yarn", "factor": 4.0 })),
        (
            "rope_parameters",
            json!({ "rope_type": "linear", "rope_theta": 1.0, "factor": 2.0 }),
        ),
        (
            "rope_parameters",
            json!({ "rope_theta": 1.0, "partial_rotary_factor": 0.5 }),
        ),
        (
            "layer_types",
            json!(["full_attention", "linear_attention", "full_attention"]),
        ),
    ];
    for (field, value) in refused {
        let error = with(field, value).unwrap_err();
        assert!(
            matches!(error, ConfigError::Unsupported { .. }),
            "{field}: {error}"
        );
    }
}

#[test]
fn values_that_make_no_sense_are_named() {
    let cases = [
        (
            "hidden_size",
            json!(0),
            "field `hidden_size` is 0, expected",
        ),
        (
            "hidden_size",
            json!(-4),
            "field `hidden_size` is -4, expected",
        ),
        (
            "vocab_size",
            json!("many"),
            "field `vocab_size` is \"many\"",
        ),
        (
            "num_key_value_heads",
            json!(3),
            "a divisor of num_attention_heads",
        ),
        ("head_dim", json!(15), "an even number"),
        ("rms_norm_eps", json!(0.0), "a positive number"),
        (
            "layer_types",
            json!(["full_attention"]),
            "one entry per layer",
        ),
    ];
    for (field, value, expected) in cases {
        let message = with(field, value).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    let message = with("vocab_size", Value::Null).unwrap_err().to_string();
    assert_eq!(message, "field `vocab_size` is missing");
}

#[test]
fn sliding_windows_follow_the_layers() {
    let mut json = dense();
    json["use_sliding_window"] = json!(true);
    json["sliding_window"] = json!(8);
    json["max_window_layers"] = json!(2);
    let windows = Qwen3Config::from_json(json.clone())
        .unwrap()
        .sliding_windows;
    assert_eq!(windows, [None, None, Some(8)]);
    json["layer_types"] = json!(["sliding_attention", "full_attention", "full_attention"]);
    let windows = Qwen3Config::from_json(json.clone())
        .unwrap()
        .sliding_windows;
    assert_eq!(windows, [Some(8), None, None]);
    json["use_sliding_window"] = json!(false);
    assert!(Qwen3Config::from_json(json).is_err());
}

#[test]
fn mixture_layers_follow_step_and_exceptions() {
    let mut json = dense();
    for (field, value) in [
        ("model_type", json!("qwen3_moe")),
        ("num_hidden_layers", json!(6)),
        ("num_experts", json!(4)),
        ("num_experts_per_tok", json!(2)),
        ("moe_intermediate_size", json!(8)),
        ("decoder_sparse_step", json!(2)),
        ("mlp_only_layers", json!([3])),
    ] {
        json[field] = value;
    }
    let config = Qwen3Config::from_json(json).unwrap();
    let layers: Vec<usize> = (0..6).filter(|&layer| config.is_moe_layer(layer)).collect();
    assert_eq!(layers, [1, 5]);
}
