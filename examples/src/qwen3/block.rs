//! One block: attention and a feed-forward layer, each after a norm and added to its input.

use burn::module::Module;
use burn::tensor::Tensor;
use burn_tree_train::{BlockContext, BlockOutputs, BlockPast};

use super::Qwen3Config;
use super::attention::Attention;
use super::mlp::Mlp;
use super::moe::SparseMoe;
use super::norm::RmsNorm;
use super::source::ParameterSource;

/// A transformer block.
#[derive(Module, Debug)]
pub struct Block {
    /// Before the attention.
    pub input_layernorm: RmsNorm,
    /// The attention.
    pub self_attn: Attention,
    /// Before the feed-forward layer.
    pub post_attention_layernorm: RmsNorm,
    /// The feed-forward layer.
    pub mlp: FeedForward,
}

/// Feed-forward layer of a block.
#[derive(Module, Debug)]
pub enum FeedForward {
    /// The same for every token.
    Dense(Mlp),
    /// By chosen experts.
    Sparse(SparseMoe),
}

impl Block {
    pub(super) fn new<S: ParameterSource>(
        config: &Qwen3Config,
        layer: usize,
        source: &mut S,
    ) -> Result<Self, S::Error> {
        let prefix = format!("model.layers.{layer}");
        let mut norm = |name: &str| {
            let weight = source.norm(&format!("{prefix}.{name}.weight"), config.hidden_size)?;
            Ok(RmsNorm::new(weight, config.rms_norm_eps))
        };
        let input_layernorm = norm("input_layernorm")?;
        let post_attention_layernorm = norm("post_attention_layernorm")?;
        let mlp = format!("{prefix}.mlp");
        Ok(Self {
            input_layernorm,
            self_attn: Attention::new(config, layer, &format!("{prefix}.self_attn"), source)?,
            post_attention_layernorm,
            mlp: match &config.moe {
                Some(moe) if config.is_moe_layer(layer) => {
                    FeedForward::Sparse(SparseMoe::new(config, moe, &mlp, source)?)
                }
                _ => FeedForward::Dense(Mlp::new(config, &mlp, source)?),
            },
        })
    }

    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
    ) -> (Tensor<3>, BlockOutputs) {
        let attention =
            self.self_attn
                .forward(self.input_layernorm.forward(x.clone()), context, past);
        let x = x + attention.hidden;
        let normed = self.post_attention_layernorm.forward(x.clone());
        let (hidden, router) = match &self.mlp {
            FeedForward::Dense(mlp) => (mlp.forward(normed), None),
            FeedForward::Sparse(moe) => {
                let (hidden, router) = moe.forward(normed);
                (hidden, Some(router))
            }
        };
        let outputs = BlockOutputs {
            key: Some(attention.key),
            value: Some(attention.value),
            router,
        };
        (x + hidden, outputs)
    }
}
