//! Small models for tests.

use burn::tensor::{DType, Device, FloatDType};
use tree_training_examples::qwen3::{MoeConfig, Qwen3, Qwen3Config};

/// A dense model of two blocks; odd sizes, so that a mix-up of dimensions shows.
pub fn dense_config(vocab_size: usize) -> Qwen3Config {
    Qwen3Config {
        vocab_size,
        hidden_size: 24,
        intermediate_size: 20,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 10,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        tie_word_embeddings: false,
        initializer_range: 0.15,
        sliding_windows: vec![None; 2],
        moe: None,
        other: Default::default(),
    }
}

/// A model of a dense block with a sliding window and a block of 6 experts, 2 a token, with tied
/// embeddings.
pub fn moe_config(vocab_size: usize) -> Qwen3Config {
    Qwen3Config {
        tie_word_embeddings: true,
        sliding_windows: vec![Some(5), None],
        moe: Some(MoeConfig {
            num_experts: 6,
            num_experts_per_tok: 2,
            moe_intermediate_size: 12,
            norm_topk_prob: true,
            decoder_sparse_step: 2,
            mlp_only_layers: Vec::new(),
            router_aux_loss_coef: 0.0,
        }),
        ..dense_config(vocab_size)
    }
}

/// A model with random weights.
pub fn random_model(config: &Qwen3Config, seed: u64, dtype: DType, device: &Device) -> Qwen3 {
    Qwen3::random(config, seed, FloatDType::from(dtype), device)
}
