//! One block: a token mixer and a feed-forward layer, each with a norm before it and a residual
//! connection.

use burn::module::Module;
use burn::tensor::{DType, Int, Tensor};
use burn_tree_train::{BlockContext, BlockError, BlockOutputs, BlockPast};

use super::attention::Attention;
use super::gated_delta_net::GatedDeltaNet;
use super::mlp::Mlp;
use super::moe::SparseMoe;
use super::norm::RmsNorm;
use super::source::ParameterSource;
use crate::config::ModelConfig;

/// A block.
#[derive(Module, Debug)]
pub struct Block {
    /// The norm before the mixer.
    pub input_layernorm: RmsNorm,
    /// The token mixer.
    pub mixer: Mixer,
    /// The norm before the feed-forward layer.
    pub post_attention_layernorm: RmsNorm,
    /// The feed-forward layer.
    pub mlp: FeedForward,
}

/// The token mixer of a block.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // One per layer; `Module` does not support boxes.
pub enum Mixer {
    /// Attention.
    Attention(Attention),
    /// A Gated DeltaNet.
    GatedDeltaNet(GatedDeltaNet),
}

/// The feed-forward layer of a block.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // One per layer; `Module` does not support boxes.
pub enum FeedForward {
    /// Dense.
    Dense(Mlp),
    /// Mixture of experts.
    Sparse(SparseMoe),
}

impl Block {
    pub(crate) fn new<S: ParameterSource>(
        config: &ModelConfig,
        layer: usize,
        source: &mut S,
    ) -> Result<Self, S::Error> {
        let prefix = format!("model.layers.{layer}");
        let key = |name: &str| format!("{prefix}.{name}");
        let hidden = config.hidden_size;
        Ok(Self {
            input_layernorm: RmsNorm::new(config, &key("input_layernorm"), hidden, source)?,
            mixer: match config.linear_attention(layer) {
                None => Mixer::Attention(Attention::new(config, layer, &key("self_attn"), source)?),
                Some(linear_attention) => Mixer::GatedDeltaNet(GatedDeltaNet::new(
                    config,
                    linear_attention,
                    &key("linear_attn"),
                    source,
                )?),
            },
            post_attention_layernorm: RmsNorm::new(
                config,
                &key("post_attention_layernorm"),
                hidden,
                source,
            )?,
            mlp: match &config.moe {
                Some(moe) if config.is_moe_layer(layer) => {
                    FeedForward::Sparse(SparseMoe::new(config, moe, &key("mlp"), source)?)
                }
                _ => FeedForward::Dense(Mlp::new(
                    [hidden, config.intermediate_size],
                    config.mlp_bias,
                    &key("mlp"),
                    source,
                )?),
            },
        })
    }

    /// `experts [B * N, K]` are the experts to use if they were chosen before.
    ///
    /// # Errors
    /// If `past` is that of another kind of block, the arguments of an operation are invalid, or
    /// the routing cannot be read from the device.
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
        experts: Option<Tensor<2, Int>>,
    ) -> Result<(Tensor<3>, BlockOutputs), BlockError> {
        let mut outputs = BlockOutputs::default();
        let normed = self.input_layernorm.forward(x.clone());
        let mixed = match &self.mixer {
            Mixer::Attention(attention) => {
                let output = attention.forward(normed, context, past)?;
                outputs.key = Some(output.key);
                outputs.value = Some(output.value);
                output.hidden
            }
            Mixer::GatedDeltaNet(layer) => {
                let output = layer.forward(normed, context, past)?;
                outputs.states = output.states;
                outputs.conv_tails = output.conv_tails;
                output.hidden
            }
        };
        let x = x + mixed;
        let normed = self.post_attention_layernorm.forward(x.clone());
        let hidden = match &self.mlp {
            FeedForward::Dense(mlp) => mlp.forward(normed),
            FeedForward::Sparse(moe) => {
                let (hidden, router) = moe.forward(normed, experts)?;
                outputs.router = Some(router);
                hidden
            }
        };
        Ok((x + hidden, outputs))
    }

    /// The compute dtype of the block: that of its projections.
    pub(crate) fn compute_dtype(&self) -> DType {
        match &self.mixer {
            Mixer::Attention(attention) => attention.q_proj.weight.val().dtype(),
            Mixer::GatedDeltaNet(layer) => layer.compute_dtype(),
        }
    }
}
