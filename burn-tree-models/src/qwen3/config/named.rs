//! Built-in configurations.

use serde_json::Map;

use super::{Architecture, ConfigError, LayerType, LinearAttentionConfig, MoeConfig, Qwen3Config};

/// Their names.
pub(super) const NAMED: [&str; 7] = [
    "tiny",
    "tiny-moe",
    "tiny-hybrid",
    "small",
    "0.6b",
    "4b",
    "hybrid",
];

impl Qwen3Config {
    /// A built-in configuration: `tiny` (hidden 256, 4 blocks, for demonstrations on a CPU),
    /// `tiny-moe` (the same with 8 experts, 2 per token), `tiny-hybrid` (the same size as a Qwen3.5,
    /// 3 blocks of 4 recurrent), `small` (hidden 512, 4 blocks, for measurements on a CPU), `0.6b`
    /// and `4b` (Qwen3-0.6B and 4B) or `hybrid` (the language model of Qwen3.5-0.8B: hidden 1024, 18 of 24 blocks
    /// recurrent).
    pub fn named(name: &str, vocab_size: usize) -> Result<Self, ConfigError> {
        let moe = MoeConfig {
            num_experts: 8,
            num_experts_per_tok: 2,
            moe_intermediate_size: 256,
            shared_expert_intermediate_size: None,
            norm_topk_prob: true,
            decoder_sparse_step: 1,
            mlp_only_layers: Vec::new(),
            router_aux_loss_coef: 0.0,
        };
        let tiny = Self {
            architecture: Architecture::Qwen3,
            vocab_size,
            hidden_size: 256,
            intermediate_size: 768,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 64,
            rotary_dim: 64,
            attention_output_gate: false,
            rms_norm_eps: 1e-6,
            rope_theta: 1e6,
            tie_word_embeddings: true,
            initializer_range: 0.02,
            layer_types: vec![LayerType::FullAttention; 4],
            moe: None,
            other: Map::new(),
        };
        let linear = LinearAttentionConfig {
            num_key_heads: 2,
            num_value_heads: 4,
            key_head_dim: 64,
            value_head_dim: 64,
            conv_kernel_dim: 4,
        };
        let tiny_hybrid = Self {
            architecture: Architecture::Qwen3_5,
            rotary_dim: 16,
            attention_output_gate: true,
            layer_types: every_fourth_attends(4, linear),
            ..tiny.clone()
        };
        match name {
            "tiny" => Ok(tiny),
            "tiny-moe" => Ok(Self {
                moe: Some(moe),
                ..tiny
            }),
            "tiny-hybrid" => Ok(tiny_hybrid),
            "small" => Ok(Self {
                hidden_size: 512,
                intermediate_size: 1536,
                num_attention_heads: 8,
                num_key_value_heads: 4,
                ..tiny
            }),
            "0.6b" => Ok(Self {
                hidden_size: 1024,
                intermediate_size: 3072,
                num_hidden_layers: 28,
                num_attention_heads: 16,
                num_key_value_heads: 8,
                head_dim: 128,
                rotary_dim: 128,
                layer_types: vec![LayerType::FullAttention; 28],
                ..tiny
            }),
            "4b" => Ok(Self {
                hidden_size: 2560,
                intermediate_size: 9728,
                num_hidden_layers: 36,
                num_attention_heads: 32,
                num_key_value_heads: 8,
                head_dim: 128,
                rotary_dim: 128,
                layer_types: vec![LayerType::FullAttention; 36],
                ..tiny
            }),
            "hybrid" => {
                let linear = LinearAttentionConfig {
                    num_key_heads: 16,
                    num_value_heads: 16,
                    key_head_dim: 128,
                    value_head_dim: 128,
                    conv_kernel_dim: 4,
                };
                Ok(Self {
                    hidden_size: 1024,
                    intermediate_size: 3584,
                    num_hidden_layers: 24,
                    num_attention_heads: 8,
                    num_key_value_heads: 2,
                    head_dim: 256,
                    rotary_dim: 64,
                    rope_theta: 1e7,
                    layer_types: every_fourth_attends(24, linear),
                    ..tiny_hybrid
                })
            }
            _ => Err(ConfigError::UnknownName(name.to_owned())),
        }
    }
}

fn every_fourth_attends(layers: usize, linear: LinearAttentionConfig) -> Vec<LayerType> {
    (1..=layers)
        .map(|layer| match layer.is_multiple_of(4) {
            true => LayerType::FullAttention,
            false => LayerType::LinearAttention(linear),
        })
        .collect()
}
