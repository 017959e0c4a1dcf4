//! The `config.json` of Llama.

use burn_tree_models::config::RopeScaling;
use burn_tree_models::llama::LLAMA;
use burn_tree_models::{AttentionBias, LayerType, ModelConfig};
use serde_json::json;

use crate::config;
use crate::configuration::read;

#[test]
fn what_is_taken_for_absent_fields() {
    let config = ModelConfig::from_json(json!({
        "model_type": "llama",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "pretraining_tp": 1,
    }))
    .unwrap();
    assert_eq!(config.family, &LLAMA);
    assert_eq!((config.head_dim, config.rotary_dim), (16, 16));
    assert_eq!(config.num_key_value_heads, 4);
    assert_eq!((config.rope_theta, config.rms_norm_eps), (1e4, 1e-6));
    assert_eq!(config.rope_scaling, RopeScaling::None);
    assert_eq!(config.attention_bias, AttentionBias::None);
    assert!(!config.mlp_bias && !config.tie_word_embeddings && !config.query_key_norm);
    assert_eq!(config.layer_types, [LayerType::FullAttention; 2]);
    assert_eq!(config.other["pretraining_tp"], json!(1));
}

/// All projections of attention have a bias, or none.
#[test]
fn biases() {
    let config = read("llama", json!({ "attention_bias": true, "mlp_bias": true })).unwrap();
    assert_eq!(config.attention_bias, AttentionBias::All);
    assert!(config.mlp_bias);
    let written = config.to_json();
    assert_eq!(written["attention_bias"], json!(true));
    assert_eq!(written["mlp_bias"], json!(true));
    assert_eq!(ModelConfig::from_json(written).unwrap(), config);
}

/// Llama ignores a window that other families would use.
#[test]
fn blocks_attend_to_everything() {
    let window = json!({ "sliding_window": 8, "use_sliding_window": true });
    let config = read("llama", window).unwrap();
    assert_eq!(config.layer_types, [LayerType::FullAttention; 3]);
    let sliding = json!({ "layer_types": vec!["sliding_attention"; 3] });
    let message = read("llama", sliding).unwrap_err().to_string();
    assert!(
        message.starts_with("field `layer_types` is sliding_attention"),
        "{message}"
    );
}

#[test]
fn the_fixtures() {
    assert_eq!(config("llama3").rms_norm_eps, 1e-5);
    assert!(!config("llama3").tie_word_embeddings);
    assert!(config("llama3_tied").tie_word_embeddings);
    let linear = RopeScaling::Linear { factor: 4.0 };
    assert_eq!(config("llama_linear").rope_scaling, linear);
    let written = config("llama3").to_json();
    assert_eq!(written["model_type"], json!("llama"));
    assert_eq!(written["architectures"], json!(["LlamaForCausalLM"]));
    assert_eq!(written.get("layer_types"), None);
}
