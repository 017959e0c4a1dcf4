//! Built-in configurations.

use super::{QWEN3 as QWEN3_FAMILY, QWEN3_5 as QWEN3_5_FAMILY};
use crate::config::{
    AttentionBias, ExpertStorage, LayerType, LinearAttentionConfig, ModelConfig, MoeConfig,
    ProjectionLayout, RopeScaling,
};
use crate::registry::Preset;

/// Vocabulary size of the Qwen3 tokenizer.
const VOCABULARY: usize = 151_936;

/// `tiny` (hidden 256, 4 blocks, for demonstrations on a CPU), `tiny-moe` (the same with 8 experts,
/// 2 per token), `small` (hidden 512, 4 blocks, for measurements on a CPU), `0.6b` and `4b`
/// (Qwen3-0.6B and 4B).
pub(super) const QWEN3: [Preset; 5] = [
    Preset {
        name: "tiny",
        config: tiny,
    },
    Preset {
        name: "tiny-moe",
        config: tiny_moe,
    },
    Preset {
        name: "small",
        config: small,
    },
    Preset {
        name: "0.6b",
        config: || published([1024, 3072], 28, 16),
    },
    Preset {
        name: "4b",
        config: || published([2560, 9728], 36, 32),
    },
];

/// `tiny-hybrid` (the size of `tiny`, with 3 of 4 blocks recurrent) and `hybrid` (the language
/// model of Qwen3.5-0.8B: hidden 1024, 18 of 24 blocks recurrent).
pub(super) const QWEN3_5: [Preset; 2] = [
    Preset {
        name: "tiny-hybrid",
        config: tiny_hybrid,
    },
    Preset {
        name: "hybrid",
        config: hybrid,
    },
];

fn tiny() -> ModelConfig {
    ModelConfig {
        family: &QWEN3_FAMILY,
        vocab_size: VOCABULARY,
        hidden_size: 256,
        intermediate_size: 768,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 64,
        rotary_dim: 64,
        rope_theta: 1e6,
        rope_scaling: RopeScaling::None,
        attention_bias: AttentionBias::None,
        query_key_norm: true,
        attention_output_gate: false,
        mlp_bias: false,
        rms_norm_eps: 1e-6,
        zero_centered_norms: false,
        tie_word_embeddings: true,
        initializer_range: 0.02,
        layer_types: vec![LayerType::FullAttention; 4],
        moe: None,
        other: Default::default(),
    }
}

fn tiny_moe() -> ModelConfig {
    ModelConfig {
        moe: Some(MoeConfig {
            num_experts: 8,
            num_experts_per_tok: 2,
            moe_intermediate_size: 256,
            shared_expert_intermediate_size: None,
            norm_topk_prob: true,
            decoder_sparse_step: 1,
            mlp_only_layers: Vec::new(),
            router_aux_loss_coef: 0.0,
            storage: ExpertStorage::Single,
        }),
        ..tiny()
    }
}

fn small() -> ModelConfig {
    ModelConfig {
        hidden_size: 512,
        intermediate_size: 1536,
        num_attention_heads: 8,
        num_key_value_heads: 4,
        ..tiny()
    }
}

/// A published dense Qwen3.
fn published([hidden, inner]: [usize; 2], layers: usize, heads: usize) -> ModelConfig {
    ModelConfig {
        hidden_size: hidden,
        intermediate_size: inner,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: 8,
        head_dim: 128,
        rotary_dim: 128,
        layer_types: vec![LayerType::FullAttention; layers],
        ..tiny()
    }
}

fn tiny_hybrid() -> ModelConfig {
    let linear = LinearAttentionConfig {
        num_key_heads: 2,
        num_value_heads: 4,
        key_head_dim: 64,
        value_head_dim: 64,
        conv_kernel_dim: 4,
        projections: ProjectionLayout::Split,
    };
    ModelConfig {
        family: &QWEN3_5_FAMILY,
        rotary_dim: 16,
        attention_output_gate: true,
        zero_centered_norms: true,
        layer_types: every_fourth_attends(4, linear),
        ..tiny()
    }
}

fn hybrid() -> ModelConfig {
    let linear = LinearAttentionConfig {
        num_key_heads: 16,
        num_value_heads: 16,
        key_head_dim: 128,
        value_head_dim: 128,
        conv_kernel_dim: 4,
        projections: ProjectionLayout::Split,
    };
    ModelConfig {
        hidden_size: 1024,
        intermediate_size: 3584,
        num_hidden_layers: 24,
        num_attention_heads: 8,
        num_key_value_heads: 2,
        head_dim: 256,
        rotary_dim: 64,
        rope_theta: 1e7,
        layer_types: every_fourth_attends(24, linear),
        ..tiny_hybrid()
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
