//! Reading and writing the `config.json` of the Qwen3 family.

use burn_tree_models::qwen3::QWEN3_5;
use burn_tree_models::{
    ConfigError, LayerType, LinearAttentionConfig, ModelConfig, ProjectionLayout,
};
use serde_json::{Value, json};

use crate::{QWEN3_MODELS, config};

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

fn with(field: &str, value: Value) -> Result<ModelConfig, ConfigError> {
    let mut json = dense();
    json[field] = value;
    ModelConfig::from_json(json)
}

#[test]
fn fixtures_survive_writing() {
    for model in QWEN3_MODELS {
        let config = config(model);
        let read = ModelConfig::from_json(config.to_json()).unwrap();
        assert_eq!(read, config);
        assert_eq!(read.rope_theta, 1e6);
        // Fields that do not affect the computation are kept.
        assert_eq!(read.other["max_position_embeddings"], json!(1024));
    }
    assert_eq!(config("qwen3_moe").moe.unwrap().num_experts, 8);
    assert!(config("qwen3_moe").tie_word_embeddings);
}

#[test]
fn both_places_of_the_rotary_base_are_read() {
    let mut json = dense();
    json.as_object_mut().unwrap().remove("rope_theta");
    let missing = ModelConfig::from_json(json.clone()).unwrap_err();
    assert_eq!(missing.to_string(), "field `rope_theta` is missing");
    json["rope_parameters"] = json!({ "rope_type": "default", "rope_theta": 5e5 });
    assert_eq!(ModelConfig::from_json(json).unwrap().rope_theta, 5e5);
    assert_eq!(ModelConfig::from_json(dense()).unwrap().rope_theta, 1e4);
    assert!(with("rope_scaling", Value::Null).is_ok());
}

#[test]
fn what_is_not_implemented_is_refused() {
    let refused = [
        ("model_type", json!("mamba")),
        ("attention_dropout", json!(0.1)),
        ("hidden_act", json!("gelu")),
        ("rope_scaling", json!({ "type": "dynamic", "factor": 4.0 })),
        ("quantization_config", json!({ "bits": 4 })),
        (
            "rope_parameters",
            json!({ "rope_type": "longrope", "rope_theta": 1.0, "factor": 2.0 }),
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
    let (full, sliding) = (LayerType::FullAttention, LayerType::SlidingAttention(8));
    let types = ModelConfig::from_json(json.clone()).unwrap().layer_types;
    assert_eq!(types, [full, full, sliding]);
    json["layer_types"] = json!(["sliding_attention", "full_attention", "full_attention"]);
    let types = ModelConfig::from_json(json.clone()).unwrap().layer_types;
    assert_eq!(types, [sliding, full, full]);
    json["use_sliding_window"] = json!(false);
    assert!(ModelConfig::from_json(json).is_err());
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
    let config = ModelConfig::from_json(json).unwrap();
    let layers: Vec<usize> = (0..6).filter(|&layer| config.is_moe_layer(layer)).collect();
    assert_eq!(layers, [1, 5]);
}

/// The published format: the fields of Qwen3-Next at the top level.
fn next() -> Value {
    json!({
        "model_type": "qwen3_next",
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 1e7,
        "rope_scaling": null,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 12,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 6,
    })
}

const LINEAR: LinearAttentionConfig = LinearAttentionConfig {
    num_key_heads: 2,
    num_value_heads: 4,
    key_head_dim: 8,
    value_head_dim: 12,
    conv_kernel_dim: 4,
    projections: ProjectionLayout::Grouped,
};

#[test]
fn hybrid_layers_follow_the_interval_or_the_list() {
    let config = ModelConfig::from_json(next()).unwrap();
    let (full, linear) = (LayerType::FullAttention, LayerType::LinearAttention(LINEAR));
    assert_eq!(config.layer_types, [linear, full, linear, full, linear]);
    assert_eq!(config.attention_layers(), 2);
    assert_eq!((config.rotary_dim, config.rope_theta), (4, 1e7));
    assert!(config.attention_output_gate);
    let moe = config.moe.as_ref().unwrap();
    assert_eq!(moe.shared_expert_intermediate_size, Some(6));
    assert!(moe.norm_topk_prob);
    let read = ModelConfig::from_json(config.to_json()).unwrap();
    assert_eq!(read.layer_types, config.layer_types);
    assert_eq!(config.to_json()["full_attention_interval"], json!(2));

    let mut json = next();
    json["layer_types"] = json!([
        "full_attention",
        "linear_attention",
        "linear_attention",
        "linear_attention",
        "linear_attention"
    ]);
    let config = ModelConfig::from_json(json).unwrap();
    assert_eq!(config.layer_types[..2], [full, linear]);

    // By default every fourth block has attention; without experts the model is dense.
    let mut json = next();
    json.as_object_mut()
        .unwrap()
        .remove("full_attention_interval");
    json["num_experts"] = json!(0);
    let config = ModelConfig::from_json(json).unwrap();
    assert_eq!(config.layer_types, [linear, linear, linear, full, linear]);
    assert_eq!(config.moe, None);
    assert_eq!(ModelConfig::from_json(config.to_json()).unwrap().moe, None);
}

#[test]
fn both_spellings_of_the_partial_rotary_embedding_are_read_and_written() {
    let mut json = next();
    for field in ["rope_theta", "partial_rotary_factor"] {
        json.as_object_mut().unwrap().remove(field);
    }
    json["rope_parameters"] = json!({
        "rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
    });
    let config = ModelConfig::from_json(json).unwrap();
    assert_eq!((config.rotary_dim, config.rope_theta), (8, 5e5));
    let written = config.to_json();
    assert_eq!(written["partial_rotary_factor"], json!(0.5));
    assert_eq!(written["rope_theta"], json!(5e5));
    assert_eq!(
        written["rope_parameters"],
        json!({
            "rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
        })
    );
    let mut json = next();
    json["partial_rotary_factor"] = json!(0.3);
    let config = ModelConfig::from_json(json.clone()).unwrap();
    assert_eq!(config.rotary_dim, 4);
    json["partial_rotary_factor"] = json!(0.2);
    let message = ModelConfig::from_json(json).unwrap_err().to_string();
    assert!(message.contains("an even number of features"), "{message}");
}

/// Of a multimodal model, the language model is read, and written alone.
#[test]
fn the_language_model_of_a_multimodal_one() {
    let mut text = next();
    let fields = text.as_object_mut().unwrap();
    for field in [
        "intermediate_size",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
    ] {
        fields.remove(field);
    }
    fields.insert("model_type".into(), json!("qwen3_5_text"));
    fields.insert("intermediate_size".into(), json!(64));
    fields.insert("mtp_num_hidden_layers".into(), json!(1));
    fields.insert("eos_token_id".into(), json!(9));
    let whole = json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "image_token_id": 7,
        "text_config": text,
        "tie_word_embeddings": true,
        "vision_config": { "depth": 12 },
    });
    let config = ModelConfig::from_json(whole.clone()).unwrap();
    assert_eq!(config.family, &QWEN3_5);
    assert!(config.tie_word_embeddings);
    let written = config.to_json();
    assert_eq!(written["model_type"], json!("qwen3_5_text"));
    assert_eq!(written["architectures"], json!(["Qwen3_5ForCausalLM"]));
    assert_eq!(written["eos_token_id"], json!(9));
    for absent in ["vision_config", "mtp_num_hidden_layers", "image_token_id"] {
        assert_eq!(written.get(absent), None, "{absent}");
    }
    let mut without = whole;
    without.as_object_mut().unwrap().remove("text_config");
    let message = ModelConfig::from_json(without).unwrap_err().to_string();
    assert_eq!(message, "field `text_config` is missing");
}

/// A model with experts in every block has no dense size, and always normalises the weights.
#[test]
fn a_mixture_in_every_block() {
    let mut json = next();
    json["model_type"] = json!("qwen3_5_moe_text");
    json["norm_topk_prob"] = json!(false);
    json.as_object_mut().unwrap().remove("intermediate_size");
    let config = ModelConfig::from_json(json.clone()).unwrap();
    assert!(config.moe.as_ref().unwrap().norm_topk_prob);
    assert_eq!(config.intermediate_size, 0);
    assert_eq!(config.to_json().get("intermediate_size"), None);
    assert_eq!(config.to_json()["model_type"], json!("qwen3_5_moe_text"));
    json["mlp_only_layers"] = json!([3]);
    let message = ModelConfig::from_json(json).unwrap_err().to_string();
    assert_eq!(message, "field `intermediate_size` is missing");
}

#[test]
fn recurrent_layers_that_make_no_sense_are_named() {
    for (field, value, expected) in [
        (
            "linear_num_value_heads",
            json!(3),
            "a multiple of linear_num_key_heads",
        ),
        (
            "linear_key_head_dim",
            json!(0),
            "field `linear_key_head_dim` is 0",
        ),
        (
            "linear_conv_kernel_dim",
            Value::Null,
            "field `linear_conv_kernel_dim` is missing",
        ),
        (
            "layer_types",
            json!(vec!["sliding_attention"; 5]),
            "only full_attention and linear",
        ),
    ] {
        let mut json = next();
        json[field] = value;
        let message = ModelConfig::from_json(json).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}
