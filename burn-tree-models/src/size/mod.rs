//! Parameters, floating-point operations and memory of a model.

mod block;

use burn_tree_train::ModelCost;

pub use block::BlockWidths;

use crate::config::{AttentionBias, ModelConfig, ProjectionLayout};

/// The sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSize {
    /// All parameters, adapters included.
    pub parameters: u64,
    /// Trained parameters.
    pub trained_parameters: u64,
    /// The cost of a step.
    pub cost: ModelCost,
}

impl ModelSize {
    /// The sizes of a model of this configuration. With `lora_rank`, only adapters of that rank on
    /// the projections of dense layers are trained.
    pub fn new(config: &ModelConfig, lora_rank: Option<usize>) -> Self {
        let mut sizes = Sizes {
            lora_rank,
            ..Sizes::default()
        };
        let hidden = config.hidden_size;
        let query = config.num_attention_heads * config.head_dim;
        let mut recurrence_width = 0;
        for layer in 0..config.num_hidden_layers {
            for [input, output] in projections(config, layer) {
                sizes.projection(input, output);
            }
            sizes.vectors += 2 * hidden;
            match config.linear_attention(layer) {
                None => sizes.vectors += attention_vectors(config),
                Some(linear) => {
                    let filters = linear.conv_dim() * linear.conv_kernel_dim;
                    sizes.frozen_by_lora(filters, filters);
                    sizes.vectors += 2 * linear.num_value_heads + linear.value_head_dim;
                    recurrence_width += 3 * linear.key_head_dim * linear.value_dim();
                }
            }
            if let Some(moe) = config.moe_of(layer) {
                let gates = match moe.shared_expert_intermediate_size {
                    Some(_) => hidden * (moe.num_experts + 1),
                    None => hidden * moe.num_experts,
                };
                let expert = 3 * hidden * moe.moe_intermediate_size;
                sizes.frozen_by_lora(
                    gates + moe.num_experts * expert,
                    gates + moe.num_experts_per_tok * expert,
                );
            } else if config.mlp_bias {
                sizes.vectors += 2 * config.intermediate_size + hidden;
            }
        }
        sizes.vectors += hidden;
        let table = (config.vocab_size * hidden) as u64;
        let tables = table * if config.tie_word_embeddings { 1 } else { 2 };
        let trained = match lora_rank {
            Some(_) => sizes.adapters,
            None => sizes.matrices + sizes.vectors as u64 + tables,
        };
        Self {
            parameters: sizes.matrices + sizes.adapters + sizes.vectors as u64 + tables,
            trained_parameters: trained,
            cost: ModelCost {
                trunk_parameters: sizes.used + sizes.adapters,
                trained_trunk_parameters: match lora_rank {
                    Some(_) => sizes.adapters,
                    None => sizes.used,
                },
                attention_width: (config.attention_layers() * 2 * query) as u64,
                recurrence_width: recurrence_width as u64,
                head_parameters: table,
                head_trained: lora_rank.is_none(),
            },
        }
    }
}

/// Shapes `[input, output]` of the linear layers of block `layer`, without routers and routed
/// experts.
pub fn projections(config: &ModelConfig, layer: usize) -> Vec<[usize; 2]> {
    let hidden = config.hidden_size;
    let mut shapes = match config.linear_attention(layer) {
        None => {
            let query = config.num_attention_heads * config.head_dim;
            let key = config.num_key_value_heads * config.head_dim;
            let gate = if config.attention_output_gate {
                query
            } else {
                0
            };
            vec![
                [hidden, query + gate],
                [hidden, key],
                [hidden, key],
                [query, hidden],
            ]
        }
        Some(linear) => {
            let (conv, value) = (linear.conv_dim(), linear.value_dim());
            let heads = linear.num_value_heads;
            let mut shapes = match linear.projections {
                ProjectionLayout::Grouped => vec![[hidden, conv + value], [hidden, 2 * heads]],
                ProjectionLayout::Split => vec![
                    [hidden, conv],
                    [hidden, value],
                    [hidden, heads],
                    [hidden, heads],
                ],
            };
            shapes.push([value, hidden]);
            shapes
        }
    };
    let inner = match config.moe_of(layer) {
        Some(moe) => moe.shared_expert_intermediate_size,
        None => Some(config.intermediate_size),
    };
    if let Some(inner) = inner {
        shapes.extend([[hidden, inner], [hidden, inner], [inner, hidden]]);
    }
    shapes
}

/// Entries of the norms and biases of attention.
fn attention_vectors(config: &ModelConfig) -> usize {
    let norms = if config.query_key_norm {
        2 * config.head_dim
    } else {
        0
    };
    let gate = if config.attention_output_gate { 2 } else { 1 };
    let heads = gate * config.num_attention_heads + 2 * config.num_key_value_heads;
    let inputs = heads * config.head_dim;
    norms
        + match config.attention_bias {
            AttentionBias::None => 0,
            AttentionBias::QueryKeyValue => inputs,
            AttentionBias::All => inputs + config.hidden_size,
        }
}

/// Numbers of parameters in the blocks.
#[derive(Default)]
struct Sizes {
    lora_rank: Option<usize>,
    /// Matrices.
    matrices: u64,
    /// Matrices that one token is multiplied with.
    used: u64,
    /// Adapters.
    adapters: u64,
    /// Norm weights, gate vectors and biases.
    vectors: usize,
}

impl Sizes {
    fn projection(&mut self, input: usize, output: usize) {
        self.frozen_by_lora(input * output, input * output);
        self.adapters += (self.lora_rank.unwrap_or(0) * (input + output)) as u64;
    }

    fn frozen_by_lora(&mut self, entries: usize, used: usize) {
        self.matrices += entries as u64;
        self.used += used as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::Module;
    use burn::tensor::{Device, FloatDType};

    use crate::config::{LayerType, MoeConfig};
    use crate::lora::LoraSettings;
    use crate::model::CausalLm;
    use crate::qwen3::{QWEN3_5, QWEN3_NEXT};

    #[test]
    fn parameters_are_those_of_the_model() {
        for name in [
            "tiny",
            "tiny-moe",
            "tiny-hybrid",
            "tiny-llama",
            "tiny-qwen2",
        ] {
            let config = ModelConfig::named(name, 100).unwrap();
            let model = CausalLm::random(&config, 0, FloatDType::F32, &Device::flex());
            let size = ModelSize::new(&config, None);
            assert_eq!(size.parameters, model.num_params() as u64, "{name}");
            assert_eq!(size.trained_parameters, size.parameters);
        }
    }

    #[test]
    fn biases_are_parameters() {
        for attention_bias in [AttentionBias::QueryKeyValue, AttentionBias::All] {
            for mlp_bias in [false, true] {
                let config = ModelConfig {
                    attention_bias,
                    mlp_bias,
                    ..ModelConfig::named("tiny-llama", 100).unwrap()
                };
                let model = CausalLm::random(&config, 0, FloatDType::F32, &Device::flex());
                let size = ModelSize::new(&config, None);
                assert_eq!(size.parameters, model.num_params() as u64, "{config:?}");
            }
        }
    }

    #[test]
    fn parameters_are_those_of_a_hybrid_mixture() {
        let tiny = ModelConfig::named("tiny-hybrid", 100).unwrap();
        let moe = ModelConfig::named("tiny-moe", 100).unwrap().moe;
        for (family, projections) in [
            (&QWEN3_NEXT, ProjectionLayout::Grouped),
            (&QWEN3_5, ProjectionLayout::Split),
        ] {
            let mut config = ModelConfig {
                family,
                moe: moe.clone().map(|moe| MoeConfig {
                    shared_expert_intermediate_size: Some(48),
                    decoder_sparse_step: 2,
                    ..moe
                }),
                ..tiny.clone()
            };
            for layer in &mut config.layer_types {
                if let LayerType::LinearAttention(linear) = layer {
                    linear.projections = projections;
                }
            }
            let device = Device::flex();
            let model = CausalLm::random(&config, 0, FloatDType::F32, &device);
            let size = ModelSize::new(&config, None);
            assert_eq!(size.parameters, model.num_params() as u64);
            // The cost counts the parameters of the adapters.
            let adapted = LoraSettings::new(3, 6.0).apply(model).unwrap();
            let size = ModelSize::new(&config, Some(3));
            assert_eq!(size.parameters, adapted.num_params() as u64);
        }
    }

    /// 0.8 billion parameters as published, 0.25 billion of them in the embedding.
    #[test]
    fn the_size_of_the_hybrid_model() {
        let config = ModelConfig::named("hybrid", 248_320).unwrap();
        let size = ModelSize::new(&config, None);
        assert!(
            (0.74e9..0.76e9).contains(&(size.parameters as f64)),
            "{size:?}"
        );
        assert_eq!(size.cost.attention_width, 6 * 2 * 8 * 256);
        assert_eq!(size.cost.recurrence_width, 18 * 3 * 16 * 128 * 128);
    }

    #[test]
    fn the_published_size_of_qwen3_0_6b() {
        let config = ModelConfig::named("0.6b", 151_936).unwrap();
        let size = ModelSize::new(&config, None);
        assert_eq!(size.parameters, 596_049_920);
        // 0.44 billion outside the embedding, as in its model card, without norms.
        assert_eq!(size.cost.trunk_parameters, 440_401_920);
        assert_eq!(size.cost.attention_width, 28 * 2 * 16 * 128);
    }

    /// 4.0 billion, 3.6 billion of them outside the embedding, as in its model card.
    #[test]
    fn the_published_size_of_qwen3_4b() {
        let config = ModelConfig::named("4b", 151_936).unwrap();
        let size = ModelSize::new(&config, None);
        assert_eq!(size.parameters, 4_022_468_096);
        assert_eq!(
            size.cost.trunk_parameters,
            36 * (2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728)
        );
    }

    #[test]
    fn a_token_passes_through_the_chosen_experts_only() {
        let config = ModelConfig::named("tiny-moe", 100).unwrap();
        let moe = config.moe.clone().unwrap();
        let expert = 3 * config.hidden_size * moe.moe_intermediate_size;
        let idle = config.num_hidden_layers * (moe.num_experts - moe.num_experts_per_tok) * expert;
        let size = ModelSize::new(&config, None);
        let matrices = size.parameters
            - size.cost.head_parameters
            - (config.num_hidden_layers * (2 * config.hidden_size + 2 * config.head_dim)) as u64
            - config.hidden_size as u64;
        assert_eq!(matrices - size.cost.trunk_parameters, idle as u64);
    }

    #[test]
    fn adapters_alone_are_trained() {
        let config = ModelConfig::named("tiny", 100).unwrap();
        let (full, lora) = (
            ModelSize::new(&config, None),
            ModelSize::new(&config, Some(2)),
        );
        // q, k, v, o, gate, up and down: [256, 256], 2 x [256, 128], [256, 256], 3 x [256, 768].
        let entries = 4 * 2 * (512 + 2 * 384 + 512 + 3 * 1024);
        assert_eq!(lora.trained_parameters, entries);
        assert_eq!(lora.parameters, full.parameters + entries);
        assert!(!lora.cost.head_trained);
    }
}
