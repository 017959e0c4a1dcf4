//! The `config.json` of Qwen2.

use burn_tree_models::qwen2::QWEN2;
use burn_tree_models::{AttentionBias, LayerType, ModelConfig};
use serde_json::json;

use crate::config;
use crate::configuration::read;

const FULL: LayerType = LayerType::FullAttention;

#[test]
fn what_is_taken_for_absent_fields() {
    let mut json = json!({
        "model_type": "qwen2",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
    });
    let config = ModelConfig::from_json(json.clone()).unwrap();
    assert_eq!(config.family, &QWEN2);
    assert_eq!((config.head_dim, config.num_key_value_heads), (2, 32));
    assert_eq!((config.rope_theta, config.rms_norm_eps), (1e4, 1e-6));
    assert_eq!(config.attention_bias, AttentionBias::QueryKeyValue);
    assert!(!config.mlp_bias && !config.tie_word_embeddings && !config.query_key_norm);
    assert_eq!(config.layer_types, [FULL; 2]);
    // Absent: 32 key and value heads; null: as many as query heads.
    json["num_attention_heads"] = json!(4);
    let message = ModelConfig::from_json(json.clone()).unwrap_err();
    assert!(message.to_string().contains("`num_key_value_heads` is 32"));
    json["num_key_value_heads"] = json!(null);
    let config = ModelConfig::from_json(json).unwrap();
    assert_eq!(config.num_key_value_heads, 4);
}

#[test]
fn later_blocks_slide_if_windows_are_used() {
    let window = LayerType::SlidingAttention(8);
    for (fields, expected) in [
        (
            json!({ "sliding_window": 8, "max_window_layers": 1 }),
            [FULL; 3],
        ),
        (
            json!({ "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1 }),
            [FULL, window, window],
        ),
        (
            json!({ "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0 }),
            [window; 3],
        ),
        // By default the first 28 blocks have no window.
        (
            json!({ "use_sliding_window": true, "sliding_window": 8 }),
            [FULL; 3],
        ),
        (
            json!({ "use_sliding_window": true, "max_window_layers": 2 }),
            [FULL, FULL, LayerType::SlidingAttention(4096)],
        ),
        (
            json!({ "use_sliding_window": true, "sliding_window": null, "max_window_layers": 1 }),
            [FULL; 3],
        ),
        // `layer_types` takes precedence.
        (
            json!({
                "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 3,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            }),
            [window, FULL, FULL],
        ),
    ] {
        let config = read("qwen2", fields.clone()).unwrap();
        assert_eq!(config.layer_types, expected, "{fields}");
        let again = ModelConfig::from_json(config.to_json()).unwrap();
        assert_eq!(again, config);
    }
    let fields = json!({ "layer_types": vec!["sliding_attention"; 3] });
    let message = read("qwen2", fields).unwrap_err().to_string();
    assert_eq!(message, "field `sliding_window` is missing");
}

#[test]
fn the_fixtures() {
    let windows = config("qwen2");
    assert_eq!(windows.head_dim, 16);
    let window = LayerType::SlidingAttention(10);
    assert_eq!(windows.layer_types, [FULL, window, window]);
    let written = windows.to_json();
    assert_eq!(written["model_type"], json!("qwen2"));
    assert_eq!(written["max_window_layers"], json!(1));
    assert_eq!(written["sliding_window"], json!(10));
    assert_eq!(written["use_sliding_window"], json!(true));
    assert_eq!(config("qwen2_yarn").layer_types, [FULL; 2]);
}
