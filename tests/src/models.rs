//! Small models for tests.

use burn::module::Param;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_tree_models::config::RopeScaling;
use burn_tree_models::layers::Mixer;
use burn_tree_models::qwen3::{QWEN3, QWEN3_5, QWEN3_NEXT};
use burn_tree_models::{
    AttentionBias, CausalLm, ExpertStorage, LayerType, LinearAttentionConfig, ModelConfig,
    MoeConfig, ProjectionLayout,
};

/// Scale of convolution weights relative to others, so that values are of order one.
const CONVOLUTION_SCALE: f64 = 4.0;

/// Decay rates of the heads of recurrent layers, repeated: slow ones, with which a wrong state
/// would show far down a path, and fast ones.
const DECAY_RATES: [f64; 2] = [0.05, 3.0];

/// A dense model of two blocks; odd sizes, so that mixed-up dimensions are detected.
pub fn dense_config(vocab_size: usize) -> ModelConfig {
    ModelConfig {
        family: &QWEN3,
        vocab_size,
        hidden_size: 24,
        intermediate_size: 20,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 10,
        rotary_dim: 10,
        rope_theta: 1e4,
        rope_scaling: RopeScaling::None,
        attention_bias: AttentionBias::None,
        query_key_norm: true,
        attention_output_gate: false,
        mlp_bias: false,
        rms_norm_eps: 1e-6,
        zero_centered_norms: false,
        tie_word_embeddings: false,
        initializer_range: 0.15,
        layer_types: vec![LayerType::FullAttention; 2],
        moe: None,
        other: Default::default(),
    }
}

/// A model of a dense block with a sliding window and a block of 6 experts, 2 per token, with tied
/// embeddings.
pub fn moe_config(vocab_size: usize) -> ModelConfig {
    ModelConfig {
        tie_word_embeddings: true,
        layer_types: vec![LayerType::SlidingAttention(5), LayerType::FullAttention],
        moe: Some(MoeConfig {
            num_experts: 6,
            num_experts_per_tok: 2,
            moe_intermediate_size: 12,
            shared_expert_intermediate_size: None,
            norm_topk_prob: true,
            decoder_sparse_step: 2,
            mlp_only_layers: Vec::new(),
            router_aux_loss_coef: 0.0,
            storage: ExpertStorage::Single,
        }),
        ..dense_config(vocab_size)
    }
}

/// A dense Qwen3.5: two recurrent blocks, an attention block and another recurrent block.
pub fn hybrid_config(vocab_size: usize) -> ModelConfig {
    let linear = LayerType::LinearAttention(LinearAttentionConfig {
        num_key_heads: 2,
        num_value_heads: 4,
        key_head_dim: 6,
        value_head_dim: 9,
        conv_kernel_dim: 4,
        projections: ProjectionLayout::Split,
    });
    ModelConfig {
        family: &QWEN3_5,
        zero_centered_norms: true,
        num_hidden_layers: 4,
        rotary_dim: 4,
        attention_output_gate: true,
        // If the query and key of a first token are nearly orthogonal, the output is nearly zero;
        // the usual epsilon of 1e-6 would then amplify rounding without bound.
        rms_norm_eps: 1e-2,
        tie_word_embeddings: true,
        layer_types: vec![linear, linear, LayerType::FullAttention, linear],
        ..dense_config(vocab_size)
    }
}

/// A Qwen3-Next: a recurrent block and an attention block with 6 experts, 2 per token, and a shared
/// expert, around a dense recurrent block.
pub fn hybrid_moe_config(vocab_size: usize) -> ModelConfig {
    let hybrid = hybrid_config(vocab_size);
    let LayerType::LinearAttention(linear) = hybrid.layer_types[0] else {
        unreachable!("the first block is recurrent");
    };
    let linear = LayerType::LinearAttention(LinearAttentionConfig {
        projections: ProjectionLayout::Grouped,
        ..linear
    });
    ModelConfig {
        family: &QWEN3_NEXT,
        num_hidden_layers: 3,
        tie_word_embeddings: false,
        layer_types: vec![linear, linear, LayerType::FullAttention],
        moe: moe_config(vocab_size).moe.map(|moe| MoeConfig {
            shared_expert_intermediate_size: Some(10),
            decoder_sparse_step: 1,
            mlp_only_layers: vec![1],
            ..moe
        }),
        ..hybrid
    }
}

/// A model with random weights, whose recurrent heads alternate between slow and fast decay.
pub fn random_model(config: &ModelConfig, seed: u64, dtype: DType, device: &Device) -> CausalLm {
    let mut model = CausalLm::random(config, seed, FloatDType::from(dtype), device);
    for block in &mut model.layers {
        if let Mixer::GatedDeltaNet(layer) = &mut block.mixer {
            let weight = layer.conv1d.weight.val().without_autodiff();
            let data = (weight.clone() * CONVOLUTION_SCALE).into_data();
            let tensor = Tensor::<2>::from_data(data, (device, weight.dtype()));
            layer.conv1d.weight = Param::from_tensor(tensor);
        }
    }
    with_decay_rates(model, &DECAY_RATES, device)
}

/// The model with these decay rates in the heads of its recurrent layers, repeated.
pub fn with_decay_rates(mut model: CausalLm, rates: &[f64], device: &Device) -> CausalLm {
    for block in &mut model.layers {
        if let Mixer::GatedDeltaNet(layer) = &mut block.mixer {
            let a_log = layer.a_log.val();
            let heads = a_log.dims()[0];
            let logarithms = rates.iter().map(|rate| rate.ln()).cycle().take(heads);
            let data = TensorData::new(logarithms.collect::<Vec<f64>>(), [heads]);
            let tensor = Tensor::<1>::from_data(data, (device, a_log.dtype()));
            layer.a_log = Param::from_tensor(tensor);
        }
    }
    model
}
