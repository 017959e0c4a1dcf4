//! Grouped-query attention over a tree.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn_tree_attn::{RopeConfig, TreeAttentionOptions, rope, tree_attention};
use burn_tree_train::{BlockContext, BlockPast};

use super::norm::RmsNorm;
use super::source::ParameterSource;
use super::{Qwen3Config, linear};

/// Projections without bias, query and key norms per head, rotary embedding of the whole head.
#[derive(Module, Debug)]
pub struct Attention {
    /// `[hidden, heads * head_dim]`
    pub q_proj: Linear,
    /// `[hidden, kv_heads * head_dim]`
    pub k_proj: Linear,
    /// `[hidden, kv_heads * head_dim]`
    pub v_proj: Linear,
    /// `[heads * head_dim, hidden]`
    pub o_proj: Linear,
    /// Over `head_dim`.
    pub q_norm: RmsNorm,
    /// Over `head_dim`.
    pub k_norm: RmsNorm,
    head_dim: usize,
    rope_theta: f64,
    sliding_window: Option<usize>,
}

/// Result of [`Attention::forward`].
pub(super) struct AttentionOutput {
    /// `[B, N, hidden]`
    pub hidden: Tensor<3>,
    /// `[B, Hkv, N, D]`, after the rotary embedding.
    pub key: Tensor<4>,
    /// `[B, Hkv, N, D]`
    pub value: Tensor<4>,
}

impl Attention {
    pub(super) fn new<S: ParameterSource>(
        config: &Qwen3Config,
        layer: usize,
        prefix: &str,
        source: &mut S,
    ) -> Result<Self, S::Error> {
        let hidden = config.hidden_size;
        let queries = config.num_attention_heads * config.head_dim;
        let keys = config.num_key_value_heads * config.head_dim;
        let mut projection = |name: &str, input, output| {
            linear(source, &format!("{prefix}.{name}.weight"), input, output)
        };
        let q_proj = projection("q_proj", hidden, queries)?;
        let k_proj = projection("k_proj", hidden, keys)?;
        let v_proj = projection("v_proj", hidden, keys)?;
        let o_proj = projection("o_proj", queries, hidden)?;
        let mut norm = |name: &str| {
            let weight = source.norm(&format!("{prefix}.{name}.weight"), config.head_dim)?;
            Ok(RmsNorm::new(weight, config.rms_norm_eps))
        };
        Ok(Self {
            q_proj,
            k_proj,
            v_proj,
            o_proj,
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            head_dim: config.head_dim,
            rope_theta: config.rope_theta,
            sliding_window: config.sliding_windows[layer],
        })
    }

    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
    ) -> AttentionOutput {
        let [batch, rows, _] = x.dims();
        let heads = |x: Tensor<3>| {
            let heads = x.dims()[2] / self.head_dim;
            x.reshape([batch, rows, heads, self.head_dim])
        };
        let rope_config = RopeConfig {
            theta: self.rope_theta,
            rotary_dim: None,
        };
        let rotate = |x: Tensor<4>| rope(x, context.position_ids.clone(), &rope_config);

        let query = self.q_norm.forward(heads(self.q_proj.forward(x.clone())));
        let key = self.k_norm.forward(heads(self.k_proj.forward(x.clone())));
        let value = heads(self.v_proj.forward(x)).swap_dims(1, 2);
        let query = rotate(query.swap_dims(1, 2));
        let key = rotate(key.swap_dims(1, 2));
        let (keys, values) = match past {
            Some(past) => (
                Tensor::cat(vec![past.key.clone(), key.clone()], 2),
                Tensor::cat(vec![past.value.clone(), value.clone()], 2),
            ),
            None => (key.clone(), value.clone()),
        };
        let options = TreeAttentionOptions {
            sliding_window: self.sliding_window,
            ..Default::default()
        };
        let attended = tree_attention(query, keys, values, &context.mask, options);
        let [_, heads, _, head_dim] = attended.dims();
        let attended = attended
            .swap_dims(1, 2)
            .reshape([batch, rows, heads * head_dim]);
        AttentionOutput {
            hidden: self.o_proj.forward(attended),
            key,
            value,
        }
    }
}
