//! Qwen2 and Qwen2.5: attention with biases of queries, keys and values, and optionally sliding
//! windows in later blocks.

use serde_json::{Map, Value};

use crate::config::{
    AttentionBias, ConfigError, Defaults, Fields, LayerType, ModelConfig, RopeScaling,
    attention_layers, write_name, write_windows,
};
use crate::registry::{Family, Preset};

/// Qwen2 and Qwen2.5, dense.
pub static QWEN2: Family = Family {
    name: "Qwen2",
    model_types: &["qwen2"],
    presets: &[
        Preset {
            name: "tiny-qwen2",
            config: tiny,
        },
        Preset {
            name: "qwen2.5-0.5b",
            config: qwen2_5_0_5b,
        },
    ],
    skipped_keys: &[],
    read,
    write,
};

/// Key and value heads if the field is absent. If it is null, there are as many as query heads.
const DEFAULT_KEY_VALUE_HEADS: usize = 32;

fn read(mut fields: Fields, _: &str) -> Result<ModelConfig, ConfigError> {
    fields.default_to("num_key_value_heads", DEFAULT_KEY_VALUE_HEADS);
    let config = ModelConfig::common(&QWEN2, &mut fields, Defaults::PLAIN)?;
    let config = ModelConfig {
        attention_bias: AttentionBias::QueryKeyValue,
        layer_types: attention_layers(&mut fields, config.num_hidden_layers, true)?,
        ..config
    };
    config.checked(fields)
}

fn write(config: &ModelConfig, json: &mut Map<String, Value>) {
    write_name(json, "qwen2", "Qwen2ForCausalLM");
    write_windows(config, json);
}

/// Hidden 256, 4 blocks, for demonstrations on a CPU.
fn tiny() -> ModelConfig {
    ModelConfig {
        hidden_size: 256,
        intermediate_size: 768,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        layer_types: vec![LayerType::FullAttention; 4],
        ..qwen2_5_0_5b()
    }
}

/// Qwen2.5-0.5B.
fn qwen2_5_0_5b() -> ModelConfig {
    ModelConfig {
        family: &QWEN2,
        vocab_size: 151_936,
        hidden_size: 896,
        intermediate_size: 4864,
        num_hidden_layers: 24,
        num_attention_heads: 14,
        num_key_value_heads: 2,
        head_dim: 64,
        rotary_dim: 64,
        rope_theta: 1e6,
        rope_scaling: RopeScaling::None,
        attention_bias: AttentionBias::QueryKeyValue,
        query_key_norm: false,
        attention_output_gate: false,
        mlp_bias: false,
        rms_norm_eps: 1e-6,
        zero_centered_norms: false,
        tie_word_embeddings: true,
        initializer_range: 0.02,
        layer_types: vec![LayerType::FullAttention; 24],
        moe: None,
        other: Map::new(),
    }
}
