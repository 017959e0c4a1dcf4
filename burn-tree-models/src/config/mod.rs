//! The configuration of a model, as in a Hugging Face `config.json`.

mod common;
mod error;
mod fields;
mod rope;

use std::path::Path;

use serde_json::{Map, Value};

pub use burn_tree_attn::{Llama3Scaling, RopeScaling, YarnScaling};
pub use error::ConfigError;

use common::write_common;
pub(crate) use common::{
    Defaults, attention_layers, extend, layer_types, write_layer_types, write_name, write_windows,
};
pub(crate) use fields::Fields;

use crate::registry::{self, Family};

/// The configuration of a model: all settings that its layers depend on.
///
/// A [`Family`] reads it from a `config.json` and writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub family: &'static Family,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Features of the residual stream.
    pub hidden_size: usize,
    /// Features inside the dense feed-forward layers; 0 without dense layers.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; a divisor of the query heads.
    pub num_key_value_heads: usize,
    /// Features of one head.
    pub head_dim: usize,
    /// Number of features of a query or key head that are rotated, starting at the first.
    pub rotary_dim: usize,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Scaling of the rotary angles.
    pub rope_scaling: RopeScaling,
    /// The projections of attention that have a bias.
    pub attention_bias: AttentionBias,
    /// Whether query and key heads have a norm before RoPE.
    pub query_key_norm: bool,
    /// Whether the output of attention is scaled by the sigmoid of a gate, the second half of the
    /// query projection.
    pub attention_output_gate: bool,
    /// Whether the projections of dense feed-forward layers have a bias.
    pub mlp_bias: bool,
    /// Epsilon of the norms.
    pub rms_norm_eps: f64,
    /// Whether norms scale by `1 + weight`.
    pub zero_centered_norms: bool,
    /// Whether head and embedding share their weight.
    pub tie_word_embeddings: bool,
    /// Standard deviation of random weights.
    pub initializer_range: f64,
    /// The token mixer of each block.
    pub layer_types: Vec<LayerType>,
    /// Mixture-of-experts settings; `None` for a dense model.
    pub moe: Option<MoeConfig>,
    /// Fields of the JSON file that do not change the computation. They are written back.
    pub other: Map<String, Value>,
}

/// The projections of attention that have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBias {
    /// None.
    None,
    /// Queries, keys and values.
    QueryKeyValue,
    /// Queries, keys, values and output.
    All,
}

/// The token mixer of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerType {
    /// Attention to all ancestors.
    FullAttention,
    /// Attention to a window of so many positions, including that of the query.
    SlidingAttention(usize),
    /// A Gated DeltaNet.
    LinearAttention(LinearAttentionConfig),
}

/// Sizes of a Gated DeltaNet layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAttentionConfig {
    /// Query and key heads `HK`; a divisor of the value heads.
    pub num_key_heads: usize,
    /// Value heads `HV`, with one state each.
    pub num_value_heads: usize,
    /// Features of a query or key head.
    pub key_head_dim: usize,
    /// Features of a value head.
    pub value_head_dim: usize,
    /// Kernel size of the causal convolution, including the current token.
    pub conv_kernel_dim: usize,
    /// The layout of the input projections in checkpoints.
    pub projections: ProjectionLayout,
}

/// The layout of the input projections of a Gated DeltaNet in checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectionLayout {
    /// Two matrices, grouped by key head.
    Grouped,
    /// Four separate matrices.
    Split,
}

impl LinearAttentionConfig {
    /// Features of all query heads; also of all key heads.
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
    /// Features inside the shared expert, if there is one.
    pub shared_expert_intermediate_size: Option<usize>,
    /// Whether the weights of the chosen experts are normalised to sum to one.
    pub norm_topk_prob: bool,
    /// Every so many blocks, the feed-forward layer is a mixture of experts.
    pub decoder_sparse_step: usize,
    /// Blocks whose feed-forward layer is dense in any case.
    pub mlp_only_layers: Vec<usize>,
    /// Coefficient of the load-balancing loss; 0 disables it.
    pub router_aux_loss_coef: f64,
    /// The layout of the experts in checkpoints.
    pub storage: ExpertStorage,
}

/// The layout of the experts of a layer in checkpoints. Both layouts can be read; this one is
/// written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertStorage {
    /// One tensor per expert and projection.
    Single,
    /// Two tensors for all experts of a layer.
    Fused,
}

impl ModelConfig {
    /// Reads the `config.json` of a model folder, or a JSON file.
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

    /// Reads the fields of a `config.json`. For a multimodal model, reads the language model in
    /// `text_config`.
    pub fn from_json(value: Value) -> Result<Self, ConfigError> {
        let Value::Object(map) = value else {
            return Err(ConfigError::NotAnObject);
        };
        let mut fields = Fields::new(map);
        let model_type = fields
            .string("model_type")?
            .ok_or_else(|| ConfigError::missing("model_type"))?;
        let family = registry::family_of(&model_type)?;
        (family.read)(fields, &model_type)
    }

    /// The `config.json` of the model, including unused fields.
    pub fn to_json(&self) -> Value {
        let mut json = write_common(self);
        (self.family.write)(self, &mut json);
        for (field, value) in &self.other {
            json.entry(field.clone()).or_insert_with(|| value.clone());
        }
        Value::Object(json)
    }

    /// The built-in configuration with this name and with another number of token ids.
    pub fn named(name: &str, vocab_size: usize) -> Result<Self, ConfigError> {
        Ok(Self {
            vocab_size,
            ..registry::preset(name)?
        })
    }

    /// Checks the configuration and stores the remaining fields in it.
    pub(crate) fn checked(self, rest: Fields) -> Result<Self, ConfigError> {
        self.check()?;
        Ok(Self {
            other: rest.into_rest(),
            ..self
        })
    }

    /// Whether the feed-forward layer of block `layer` is a mixture of experts.
    pub fn is_moe_layer(&self, layer: usize) -> bool {
        self.moe.as_ref().is_some_and(|moe| {
            !moe.mlp_only_layers.contains(&layer)
                && (layer + 1).is_multiple_of(moe.decoder_sparse_step)
        })
    }

    /// The mixture-of-experts settings of block `layer`, if it has one.
    pub fn moe_of(&self, layer: usize) -> Option<&MoeConfig> {
        self.moe.as_ref().filter(|_| self.is_moe_layer(layer))
    }

    /// The settings of block `layer`, if it is a Gated DeltaNet.
    pub fn linear_attention(&self, layer: usize) -> Option<&LinearAttentionConfig> {
        match &self.layer_types[layer] {
            LayerType::LinearAttention(config) => Some(config),
            LayerType::FullAttention | LayerType::SlidingAttention(_) => None,
        }
    }

    /// Whether the model has recurrent blocks.
    pub fn is_hybrid(&self) -> bool {
        self.attention_layers() < self.num_hidden_layers
    }

    /// Number of attention blocks.
    pub fn attention_layers(&self) -> usize {
        let layers = 0..self.num_hidden_layers;
        layers
            .filter(|&layer| self.linear_attention(layer).is_none())
            .count()
    }

    fn check(&self) -> Result<(), ConfigError> {
        let invalid = |field, value: &dyn ToString, expected| {
            Err(ConfigError::invalid(field, value.to_string(), expected))
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
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
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
        if matches!(self.rope_scaling, RopeScaling::Yarn(_)) && self.rope_theta <= 1.0 {
            return invalid("rope_theta", &self.rope_theta, "more than 1 for YaRN");
        }
        self.check_experts()?;
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

    fn check_experts(&self) -> Result<(), ConfigError> {
        if let Some(moe) = &self.moe
            && moe.num_experts_per_tok > moe.num_experts
        {
            return Err(ConfigError::invalid(
                "num_experts_per_tok",
                moe.num_experts_per_tok,
                "at most the number of experts",
            ));
        }
        if self.intermediate_size == 0
            && (0..self.num_hidden_layers).any(|layer| !self.is_moe_layer(layer))
        {
            return Err(ConfigError::missing("intermediate_size"));
        }
        Ok(())
    }
}
