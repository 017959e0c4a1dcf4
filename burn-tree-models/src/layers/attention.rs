//! Grouped-query attention over a tree.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Tensor, activation::sigmoid};
use burn_tree_attn::{
    KeyValue, RopeConfig, RopePairing, TreeAttentionOptions, try_rope, try_tree_attention,
    try_tree_attention_with_past,
};
use burn_tree_train::{BlockContext, BlockError, BlockPast};

use super::norm::RmsNorm;
use super::source::ParameterSource;
use super::{linear, project, project_all};
use crate::config::{AttentionBias, LayerType, ModelConfig};

/// Projections, optionally with biases; optional query and key norms per head; RoPE on all or the
/// first features of a head.
#[derive(Module, Debug)]
pub struct Attention {
    /// `[hidden, heads * head_dim]`; with an output gate twice as wide: query, then gate, of each
    /// head.
    pub q_proj: Linear,
    /// `[hidden, kv_heads * head_dim]`
    pub k_proj: Linear,
    /// `[hidden, kv_heads * head_dim]`
    pub v_proj: Linear,
    /// `[heads * head_dim, hidden]`
    pub o_proj: Linear,
    /// Query norm over `head_dim`.
    pub q_norm: Option<RmsNorm>,
    /// Key norm over `head_dim`.
    pub k_norm: Option<RmsNorm>,
    head_dim: usize,
    #[module(skip)]
    rope: RopeConfig,
    sliding_window: Option<usize>,
    output_gate: bool,
}

/// The result of [`Attention::forward`].
pub(super) struct AttentionOutput {
    /// `[B, N, hidden]`
    pub hidden: Tensor<3>,
    /// Keys after RoPE `[B, Hkv, N, D]`.
    pub key: Tensor<4>,
    /// Values `[B, Hkv, N, D]`.
    pub value: Tensor<4>,
}

impl Attention {
    pub(super) fn new<S: ParameterSource>(
        config: &ModelConfig,
        layer: usize,
        prefix: &str,
        source: &mut S,
    ) -> Result<Self, S::Error> {
        let hidden = config.hidden_size;
        let queries = config.num_attention_heads * config.head_dim;
        let keys = config.num_key_value_heads * config.head_dim;
        let gates = if config.attention_output_gate {
            queries
        } else {
            0
        };
        let mut projection =
            |name: &str, shape, bias| linear(source, &format!("{prefix}.{name}"), shape, bias);
        let biased = config.attention_bias != AttentionBias::None;
        let q_proj = projection("q_proj", [hidden, queries + gates], biased)?;
        let k_proj = projection("k_proj", [hidden, keys], biased)?;
        let v_proj = projection("v_proj", [hidden, keys], biased)?;
        let output_biased = config.attention_bias == AttentionBias::All;
        let o_proj = projection("o_proj", [queries, hidden], output_biased)?;
        let mut norm = |name: &str| match config.query_key_norm {
            true => {
                let prefix = format!("{prefix}.{name}");
                RmsNorm::new(config, &prefix, config.head_dim, source).map(Some)
            }
            false => Ok(None),
        };
        Ok(Self {
            q_proj,
            k_proj,
            v_proj,
            o_proj,
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            head_dim: config.head_dim,
            rope: RopeConfig {
                theta: config.rope_theta,
                rotary_dim: Some(config.rotary_dim),
                pairing: RopePairing::Halves,
                scaling: config.rope_scaling,
            },
            sliding_window: match config.layer_types[layer] {
                LayerType::SlidingAttention(window) => Some(window),
                LayerType::FullAttention | LayerType::LinearAttention(_) => None,
            },
            output_gate: config.attention_output_gate,
        })
    }

    /// # Errors
    /// If `past` is that of a recurrent block, or the arguments of an operation are invalid.
    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
    ) -> Result<AttentionOutput, BlockError> {
        let [batch, rows, _] = x.dims();
        let heads = |x: Tensor<3>, width: usize| {
            let heads = x.dims()[2] / width;
            x.reshape([batch, rows, heads, width])
        };
        let normed = |norm: &Option<RmsNorm>, x: Tensor<4>| match norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        let rotate = |x: Tensor<4>| try_rope(x.swap_dims(1, 2), context.position_ids(), &self.rope);

        let projections = [&self.q_proj, &self.k_proj, &self.v_proj];
        let [query, key, value] = project_all(projections, x);
        let (query, gate) = match self.output_gate {
            false => (heads(query, self.head_dim), None),
            true => {
                let query_and_gate = heads(query, 2 * self.head_dim);
                let [query, gate] = halves(query_and_gate);
                (query, Some(gate))
            }
        };
        let query = normed(&self.q_norm, query);
        let key = heads(key, self.head_dim);
        let key = normed(&self.k_norm, key);
        let value = heads(value, self.head_dim).swap_dims(1, 2);
        let (query, key) = (rotate(query)?, rotate(key)?);
        let options = TreeAttentionOptions {
            sliding_window: self.sliding_window,
            ..Default::default()
        };
        let own = KeyValue {
            key: key.clone(),
            value: value.clone(),
        };
        let attended = match past {
            None => try_tree_attention(query, own.key, own.value, context.mask(), options)?,
            Some(BlockPast::Attention(past)) => {
                try_tree_attention_with_past(query, past.clone(), own, context.mask(), options)?
            }
            Some(BlockPast::Recurrent { .. }) => {
                return Err("attention continues from keys and values, got states".into());
            }
        };
        let attended = attended.swap_dims(1, 2);
        let attended = match gate {
            Some(gate) => attended * sigmoid(gate),
            None => attended,
        };
        let [_, _, heads, head_dim] = attended.dims();
        let attended = attended.reshape([batch, rows, heads * head_dim]);
        Ok(AttentionOutput {
            hidden: project(&self.o_proj, attended),
            key,
            value,
        })
    }
}

/// The two halves of the last dimension.
fn halves(x: Tensor<4>) -> [Tensor<4>; 2] {
    let width = x.dims()[3] / 2;
    [
        x.clone().slice_dim(3, 0..width),
        x.slice_dim(3, width..2 * width),
    ]
}
