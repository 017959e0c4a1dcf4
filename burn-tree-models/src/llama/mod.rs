//! Llama 2 and 3: attention without query and key norms, optionally with biases.

use serde_json::{Map, Value, json};

use crate::config::{
    AttentionBias, ConfigError, Defaults, Fields, LayerType, Llama3Scaling, ModelConfig,
    RopeScaling, extend, layer_types, write_name,
};
use crate::registry::{Family, Preset};

/// Llama 2, 3, 3.1, 3.2 and 3.3, text models only.
pub static LLAMA: Family = Family {
    name: "Llama",
    model_types: &["llama"],
    presets: &[
        Preset {
            name: "tiny-llama",
            config: tiny,
        },
        Preset {
            name: "llama-1b",
            config: llama_3_2_1b,
        },
    ],
    skipped_keys: &[],
    read,
    write,
};

fn read(mut fields: Fields, _: &str) -> Result<ModelConfig, ConfigError> {
    let config = ModelConfig::common(&LLAMA, &mut fields, Defaults::PLAIN)?;
    let layers = layer_types(&mut fields, config.num_hidden_layers)?.unwrap_or_default();
    if let Some(other) = layers.into_iter().find(|name| name != "full_attention") {
        let reason = "Llama's blocks attend to everything";
        return Err(ConfigError::unsupported("layer_types", other, reason));
    }
    let config = ModelConfig {
        attention_bias: match fields.flag("attention_bias")? {
            Some(true) => AttentionBias::All,
            Some(false) | None => AttentionBias::None,
        },
        mlp_bias: fields.flag("mlp_bias")?.unwrap_or(false),
        ..config
    };
    config.checked(fields)
}

fn write(config: &ModelConfig, json: &mut Map<String, Value>) {
    write_name(json, "llama", "LlamaForCausalLM");
    let bias = config.attention_bias != AttentionBias::None;
    extend(
        json,
        json!({ "attention_bias": bias, "mlp_bias": config.mlp_bias }),
    );
}

/// Hidden 256, 4 blocks, for demonstrations on a CPU.
fn tiny() -> ModelConfig {
    ModelConfig {
        hidden_size: 256,
        intermediate_size: 768,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        layer_types: vec![LayerType::FullAttention; 4],
        ..llama_3_2_1b()
    }
}

/// Llama 3.2 1B.
fn llama_3_2_1b() -> ModelConfig {
    ModelConfig {
        family: &LLAMA,
        vocab_size: 128_256,
        hidden_size: 2048,
        intermediate_size: 8192,
        num_hidden_layers: 16,
        num_attention_heads: 32,
        num_key_value_heads: 8,
        head_dim: 64,
        rotary_dim: 64,
        rope_theta: 5e5,
        rope_scaling: RopeScaling::Llama3(Llama3Scaling {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        }),
        attention_bias: AttentionBias::None,
        query_key_norm: false,
        attention_output_gate: false,
        mlp_bias: false,
        rms_norm_eps: 1e-5,
        zero_centered_norms: false,
        tie_word_embeddings: true,
        initializer_range: 0.02,
        layer_types: vec![LayerType::FullAttention; 16],
        moe: None,
        other: Map::new(),
    }
}
