//! Shape of a model, as in a Hugging Face `config.json`.

mod error;
mod fields;
mod json;
mod named;

use std::path::Path;

use serde_json::{Map, Value};

pub use error::ConfigError;

/// Shape and constants of a model of the Qwen3 family.
#[derive(Clone, Debug, PartialEq)]
pub struct Qwen3Config {
    /// Which member of the family.
    pub architecture: Architecture,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Features of the residual stream.
    pub hidden_size: usize,
    /// Features inside the dense feed-forward layers; 0 if all are mixtures of experts.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Features of one head.
    pub head_dim: usize,
    /// How many features of a query or key head, from the first on, are rotated.
    pub rotary_dim: usize,
    /// Whether what attention reads is scaled by the sigmoid of a second half of the query
    /// projection.
    pub attention_output_gate: bool,
    /// Added to the mean square in norms.
    pub rms_norm_eps: f64,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Standard deviation of random weights.
    pub initializer_range: f64,
    /// How each block mixes tokens.
    pub layer_types: Vec<LayerType>,
    /// Mixture-of-experts settings; `None` for a dense model.
    pub moe: Option<MoeConfig>,
    /// Fields of the JSON file that do not change the computation; they are written back.
    pub other: Map<String, Value>,
}

/// Members of the family, each dense or a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen3 and Qwen3-MoE: attention in every block.
    Qwen3,
    /// Qwen3-Next: Gated DeltaNet in most blocks, attention with an output gate in the others, norms
    /// with weights centred on zero.
    Qwen3Next,
    /// The language model of Qwen3.5 and Qwen3.5-MoE: as Qwen3-Next, with the input projections of
    /// the recurrent layers stored apart.
    Qwen3_5,
}

impl Architecture {
    /// Whether norms scale by `1 + weight`.
    pub fn has_zero_centered_norms(self) -> bool {
        self.is_hybrid()
    }

    /// Whether blocks may be recurrent.
    pub fn is_hybrid(self) -> bool {
        self != Self::Qwen3
    }
}

/// How a block mixes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerType {
    /// By attention to all ancestors.
    FullAttention,
    /// By attention to so many positions, the query's included.
    SlidingAttention(usize),
    /// By a Gated DeltaNet.
    LinearAttention(LinearAttentionConfig),
}

/// Sizes of a Gated DeltaNet layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAttentionConfig {
    /// Query and key heads `HK`; divides the value heads.
    pub num_key_heads: usize,
    /// Value heads `HV`, each with a state of its own.
    pub num_value_heads: usize,
    /// Features of a query or key head.
    pub key_head_dim: usize,
    /// Features of a value head.
    pub value_head_dim: usize,
    /// Tokens that the causal convolution sees, the current one included.
    pub conv_kernel_dim: usize,
}

impl LinearAttentionConfig {
    /// Features of all query heads, and of all key heads.
    pub fn key_dim(&self) -> usize {
        self.num_key_heads * self.key_head_dim
    }

    /// Features of all value heads.
    pub fn value_dim(&self) -> usize {
        self.num_value_heads * self.value_head_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn conv_dim(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }
}

/// Mixture-of-experts settings.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// Number of experts `E`.
    pub num_experts: usize,
    /// Experts per token `K`.
    pub num_experts_per_tok: usize,
    /// Features inside one expert.
    pub moe_intermediate_size: usize,
    /// Features inside the expert that every token passes through, if there is one.
    pub shared_expert_intermediate_size: Option<usize>,
    /// Whether the weights of the chosen experts are scaled to sum to one.
    pub norm_topk_prob: bool,
    /// Every how many blocks the feed-forward layer is a mixture.
    pub decoder_sparse_step: usize,
    /// Blocks that stay dense all the same.
    pub mlp_only_layers: Vec<usize>,
    /// Factor of the load-balancing loss; 0 if it is off.
    pub router_aux_loss_coef: f64,
}

impl Qwen3Config {
    /// Reads `config.json` of a model folder, or a JSON file.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let path = match path.is_dir() {
            true => path.join("config.json"),
            false => path.to_owned(),
        };
        let text = std::fs::read_to_string(&path).map_err(|source| ConfigError::Io {
            path: path.clone(),
            source,
        })?;
        let value = serde_json::from_str(&text).map_err(|source| ConfigError::Json {
            path: path.clone(),
            source,
        })?;
        Self::from_json(value)
    }

    /// Whether the feed-forward layer of block `layer` is a mixture of experts.
    pub fn is_moe_layer(&self, layer: usize) -> bool {
        self.moe.as_ref().is_some_and(|moe| {
            !moe.mlp_only_layers.contains(&layer)
                && (layer + 1).is_multiple_of(moe.decoder_sparse_step)
        })
    }

    /// The settings of block `layer`, if it is a Gated DeltaNet.
    pub fn linear_attention(&self, layer: usize) -> Option<&LinearAttentionConfig> {
        match &self.layer_types[layer] {
            LayerType::LinearAttention(config) => Some(config),
            LayerType::FullAttention | LayerType::SlidingAttention(_) => None,
        }
    }

    /// Whether some block is recurrent.
    pub fn is_hybrid(&self) -> bool {
        self.attention_layers() < self.num_hidden_layers
    }

    /// Number of blocks with attention.
    pub fn attention_layers(&self) -> usize {
        let layers = 0..self.num_hidden_layers;
        layers
            .filter(|&layer| self.linear_attention(layer).is_none())
            .count()
    }

    fn check(&self) -> Result<(), ConfigError> {
        let invalid = |field, value: &dyn ToString, expected| {
            Err(ConfigError::Invalid {
                field,
                value: value.to_string(),
                expected,
            })
        };
        if !self
            .num_attention_heads
            .is_multiple_of(self.num_key_value_heads)
        {
            return invalid(
                "num_key_value_heads",
                &self.num_key_value_heads,
                "a divisor of num_attention_heads",
            );
        }
        if !self.head_dim.is_multiple_of(2) {
            return invalid("head_dim", &self.head_dim, "an even number");
        }
        if self.rotary_dim == 0
            || self.rotary_dim > self.head_dim
            || !self.rotary_dim.is_multiple_of(2)
        {
            return invalid(
                "partial_rotary_factor",
                &(self.rotary_dim as f64 / self.head_dim as f64),
                "a share of head_dim that is an even number of features",
            );
        }
        if self.rms_norm_eps <= 0.0 {
            return invalid("rms_norm_eps", &self.rms_norm_eps, "a positive number");
        }
        if self.rope_theta <= 0.0 {
            return invalid("rope_theta", &self.rope_theta, "a positive number");
        }
        if let Some(moe) = &self.moe
            && moe.num_experts_per_tok > moe.num_experts
        {
            return invalid(
                "num_experts_per_tok",
                &moe.num_experts_per_tok,
                "at most the number of experts",
            );
        }
        if self.intermediate_size == 0
            && (0..self.num_hidden_layers).any(|layer| !self.is_moe_layer(layer))
        {
            return Err(ConfigError::Missing {
                field: "intermediate_size",
            });
        }
        for layer in 0..self.num_hidden_layers {
            if let Some(linear) = self.linear_attention(layer)
                && !linear.num_value_heads.is_multiple_of(linear.num_key_heads)
            {
                return invalid(
                    "linear_num_value_heads",
                    &linear.num_value_heads,
                    "a multiple of linear_num_key_heads",
                );
            }
        }
        Ok(())
    }
}
