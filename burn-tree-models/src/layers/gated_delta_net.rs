//! Gated DeltaNet: a recurrent layer whose state follows each path of the tree.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{DType, Tensor, activation::sigmoid};
use burn_tree_nn::{decay_gate, gated_rms_norm, l2_norm};
use burn_tree_ssm::{
    CausalConv1dOptions, GatedDeltaRuleOptions, try_tree_causal_conv1d_split,
    try_tree_gated_delta_rule,
};
use burn_tree_train::{BlockContext, BlockError, BlockPast};

use super::source::{Initial, ParameterSource};
use super::{linear, project, project_all};
use crate::config::{LinearAttentionConfig, ModelConfig, ProjectionLayout};

/// Epsilon of the L2 norm of queries and keys.
const L2_NORM_EPSILON: f64 = 1e-6;

/// Input projections, a causal convolution, the gated delta rule, a gated norm and an output
/// projection.
#[derive(Module, Debug)]
pub struct GatedDeltaNet {
    /// Projections to queries, keys, values, output gates `z`, and the inputs of the decay and
    /// update gates.
    pub projections: InputProjections,
    /// The causal convolution of queries, keys and values.
    pub conv1d: DepthwiseConv,
    /// `[HV]` logarithm of the decay rate, in at least f32.
    pub a_log: Param<Tensor<1>>,
    /// `[HV]` bias of the input-dependent part of the decay.
    pub dt_bias: Param<Tensor<1>>,
    /// Gated norm of each value head.
    pub norm: GatedNorm,
    /// `[value_dim, hidden]`
    pub out_proj: Linear,
    key_heads: usize,
    value_heads: usize,
    key_head_dim: usize,
    value_head_dim: usize,
}

/// The input projections, in the layout of the checkpoint.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // One per layer; `Module` does not support boxes.
pub enum InputProjections {
    /// Qwen3-Next: grouped by key head.
    Grouped(GroupedProjections),
    /// Qwen3.5: separate.
    Split(SplitProjections),
}

/// Projections grouped by key head, each of which has `r` value heads.
#[derive(Module, Debug)]
pub struct GroupedProjections {
    /// `[hidden, HK * (2 * DK + 2 * r * DV)]`: query, key, `r` values, `r` output gates.
    pub in_proj_qkvz: Linear,
    /// `[hidden, HK * 2 * r]`: `r` times `b`, `r` times `a`.
    pub in_proj_ba: Linear,
}

/// Separate projections.
#[derive(Module, Debug)]
pub struct SplitProjections {
    /// `[hidden, 2 * key_dim + value_dim]`: all queries, all keys, all values.
    pub in_proj_qkv: Linear,
    /// `[hidden, value_dim]`
    pub in_proj_z: Linear,
    /// `[hidden, HV]`
    pub in_proj_b: Linear,
    /// `[hidden, HV]`
    pub in_proj_a: Linear,
}

/// A depthwise convolution without bias.
#[derive(Module, Debug)]
pub struct DepthwiseConv {
    /// `[channels, kernel]`; the last entry is that of the current token.
    pub weight: Param<Tensor<2>>,
}

/// A norm scaled by a gate; its weight is not zero-centred.
#[derive(Module, Debug)]
pub struct GatedNorm {
    /// `[DV]`, in at least f32.
    pub weight: Param<Tensor<1>>,
    epsilon: f64,
}

/// The result of [`GatedDeltaNet::forward`].
pub struct GatedDeltaNetOutput {
    /// `[B, N, hidden]`
    pub hidden: Tensor<3>,
    /// States `[X, HV, DK, DV]` after the requested rows.
    pub states: Option<Tensor<4>>,
    /// Convolution tails `[X, K - 1, channels]` of the requested rows.
    pub conv_tails: Option<Tensor<3>>,
}

/// The projections of each token.
struct Projected {
    /// `[B, N, 2 * key_dim + value_dim]`: all queries, all keys, all values.
    qkv: Tensor<3>,
    /// `[B, N, HV, DV]`
    z: Tensor<4>,
    /// `[B, N, HV]`
    b: Tensor<3>,
    /// `[B, N, HV]`
    a: Tensor<3>,
}

impl GatedDeltaNet {
    pub(super) fn new<S: ParameterSource>(
        config: &ModelConfig,
        linear_attention: &LinearAttentionConfig,
        prefix: &str,
        source: &mut S,
    ) -> Result<Self, S::Error> {
        let LinearAttentionConfig {
            num_key_heads,
            num_value_heads,
            key_head_dim,
            value_head_dim,
            conv_kernel_dim,
            projections,
        } = *linear_attention;
        let value_dim = linear_attention.value_dim();
        let conv_dim = linear_attention.conv_dim();
        let hidden = config.hidden_size;
        let mut projection =
            |name: &str, shape| linear(source, &format!("{prefix}.{name}"), shape, false);
        let projections = match projections {
            ProjectionLayout::Grouped => InputProjections::Grouped(GroupedProjections {
                in_proj_qkvz: projection("in_proj_qkvz", [hidden, conv_dim + value_dim])?,
                in_proj_ba: projection("in_proj_ba", [hidden, 2 * num_value_heads])?,
            }),
            ProjectionLayout::Split => InputProjections::Split(SplitProjections {
                in_proj_qkv: projection("in_proj_qkv", [hidden, conv_dim])?,
                in_proj_z: projection("in_proj_z", [hidden, value_dim])?,
                in_proj_b: projection("in_proj_b", [hidden, num_value_heads])?,
                in_proj_a: projection("in_proj_a", [hidden, num_value_heads])?,
            }),
        };
        let out_proj = projection("out_proj", [value_dim, hidden])?;
        let conv1d = source.convolution(
            &format!("{prefix}.conv1d.weight"),
            conv_dim,
            conv_kernel_dim,
        )?;
        let mut vector = |name: &str, size, initial| {
            let vector = source.vector(&format!("{prefix}.{name}"), size, initial)?;
            Ok(Param::from_tensor(vector))
        };
        Ok(Self {
            projections,
            conv1d: DepthwiseConv {
                weight: Param::from_tensor(conv1d),
            },
            a_log: vector("A_log", num_value_heads, Initial::LogRates)?,
            dt_bias: vector("dt_bias", num_value_heads, Initial::Ones)?,
            norm: GatedNorm {
                weight: vector("norm.weight", value_head_dim, Initial::Ones)?,
                epsilon: config.rms_norm_eps,
            },
            out_proj,
            key_heads: num_key_heads,
            value_heads: num_value_heads,
            key_head_dim,
            value_head_dim,
        })
    }

    /// Runs the layer on `x [B, N, hidden]`, from zero states or from the states of `past`.
    ///
    /// # Errors
    /// If `past` is that of an attention block, or does not match the initial states of the
    /// context's recurrence.
    pub fn forward(
        &self,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
    ) -> Result<GatedDeltaNetOutput, BlockError> {
        let [batch, rows, _] = x.dims();
        let (initial_states, initial_tails) = match past {
            None => (None, None),
            Some(BlockPast::Recurrent { states, conv_tails }) => {
                (Some(states.clone()), conv_tails.clone())
            }
            Some(BlockPast::Attention(_)) => {
                return Err("a recurrent layer continues from states, got keys and values".into());
            }
        };
        let Projected { qkv, z, b, a } = self.project(x);

        let recurrence = context.try_recurrence()?;
        let key_dim = self.key_heads * self.key_head_dim;
        let value_dim = self.value_heads * self.value_head_dim;
        let convolved = try_tree_causal_conv1d_split(
            qkv,
            self.conv1d.weight.val(),
            recurrence,
            initial_tails,
            [key_dim, key_dim, value_dim],
            CausalConv1dOptions { silu: true },
        )?;
        let [query, key, value] = convolved.outputs;
        let heads =
            |x: Tensor<3>, heads: usize, head_dim: usize| x.reshape([batch, rows, heads, head_dim]);
        let query = heads(query, self.key_heads, self.key_head_dim);
        let query = l2_norm(query, L2_NORM_EPSILON);
        let key = heads(key, self.key_heads, self.key_head_dim);
        let key = l2_norm(key, L2_NORM_EPSILON);
        let value = heads(value, self.value_heads, self.value_head_dim);
        let log_decay = decay_gate(a, self.a_log.val(), self.dt_bias.val());
        let mixed = try_tree_gated_delta_rule(
            query,
            key,
            value,
            log_decay,
            sigmoid(b),
            recurrence,
            initial_states,
            GatedDeltaRuleOptions::default(),
        )?;
        let normed = gated_rms_norm(mixed.output, z, self.norm.weight.val(), self.norm.epsilon);
        Ok(GatedDeltaNetOutput {
            hidden: project(&self.out_proj, normed.reshape([batch, rows, value_dim])),
            states: mixed.states,
            conv_tails: convolved.tails,
        })
    }

    fn project(&self, x: Tensor<3>) -> Projected {
        let [batch, rows, _] = x.dims();
        match &self.projections {
            InputProjections::Split(projections) => {
                let layers = [&projections.in_proj_qkv, &projections.in_proj_z];
                let [qkv, z] = project_all(layers, x.clone());
                let [b, a] = project_all([&projections.in_proj_b, &projections.in_proj_a], x);
                let z = z.reshape([batch, rows, self.value_heads, self.value_head_dim]);
                Projected { qkv, z, b, a }
            }
            InputProjections::Grouped(projections) => {
                let layers = [&projections.in_proj_qkvz, &projections.in_proj_ba];
                let [qkvz, ba] = project_all(layers, x).map(|y| {
                    let width = y.dims()[2] / self.key_heads;
                    y.reshape([batch, rows, self.key_heads, width])
                });
                // Columns `start..start + width` of each group.
                let part = |grouped: &Tensor<4>, start: usize, width: usize| {
                    let part = grouped.clone().slice_dim(3, start..start + width);
                    part.reshape([batch, rows, self.key_heads * width])
                };
                let share = self.value_heads / self.key_heads;
                let (keys, values) = (self.key_head_dim, share * self.value_head_dim);
                let qkv = vec![
                    part(&qkvz, 0, keys),
                    part(&qkvz, keys, keys),
                    part(&qkvz, 2 * keys, values),
                ];
                Projected {
                    qkv: Tensor::cat(qkv, 2),
                    z: part(&qkvz, 2 * keys + values, values).reshape([
                        batch,
                        rows,
                        self.value_heads,
                        self.value_head_dim,
                    ]),
                    b: part(&ba, 0, share),
                    a: part(&ba, share, share),
                }
            }
        }
    }

    /// The dtype of the projections.
    pub(super) fn compute_dtype(&self) -> DType {
        self.out_proj.weight.val().dtype()
    }
}
