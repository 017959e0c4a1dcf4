//! Values per token that a block keeps, for memory estimates.

use burn_tree_ssm::MAX_WINDOW_ROWS;

use crate::config::ModelConfig;

/// Numbers of tensors `[tokens, width]` that autodiff keeps for one block, by width. Counted from
/// the operations of a block; those of attention are checked against measured peaks.
const KEPT_HIDDEN: u64 = 5;
/// Queries after projection and after RoPE, and the output of attention.
const KEPT_QUERY: u64 = 3;
/// Keys after projection and after RoPE, and values.
const KEPT_KEY: u64 = 3;
/// The output gate, its sigmoid, and its product.
const KEPT_GATED_QUERY: u64 = 3;
/// Inputs and outputs of the convolution.
const KEPT_CONVOLUTION: u64 = 2;
/// Queries and keys before and after their norms.
const KEPT_LINEAR_KEY: u64 = 4;
/// Values, the output of the rule, its gate, and the gated norm.
const KEPT_LINEAR_VALUE: u64 = 4;
/// Per value head, a row of the inverse with the width of a window, and two gates before and after
/// activation.
const KEPT_LINEAR_HEAD: u64 = MAX_WINDOW_ROWS as u64 + 4;
const KEPT_INNER: u64 = 3;

/// Values per token of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWidths {
    /// Width of the block input.
    pub hidden: u64,
    /// Width inside the feed-forward layer, counted per token.
    pub inner: u64,
    /// Width of keys and values; 0 in recurrent blocks.
    pub key_value: u64,
    /// Size of one state; 0 in attention blocks.
    pub state: u64,
    /// Values that autodiff keeps for the backward pass.
    pub kept: u64,
}

impl BlockWidths {
    /// The widths of block `layer`.
    pub fn new(config: &ModelConfig, layer: usize) -> Self {
        let hidden = config.hidden_size as u64;
        let inner = match config.moe_of(layer) {
            Some(moe) => {
                let shared = moe.shared_expert_intermediate_size.unwrap_or(0);
                moe.num_experts_per_tok * moe.moe_intermediate_size + shared
            }
            None => config.intermediate_size,
        } as u64;
        let (key_value, state, mixer) = match config.linear_attention(layer) {
            None => {
                let query = (config.num_attention_heads * config.head_dim) as u64;
                let key = (config.num_key_value_heads * config.head_dim) as u64;
                // Outputs of the norms.
                let normed = u64::from(config.query_key_norm);
                let gated = match config.attention_output_gate {
                    true => KEPT_GATED_QUERY * query,
                    false => 0,
                };
                let kept = (KEPT_QUERY + normed) * query + gated + (KEPT_KEY + normed) * key;
                (2 * key, 0, kept)
            }
            Some(linear) => {
                let kept = KEPT_CONVOLUTION * linear.conv_dim() as u64
                    + KEPT_LINEAR_KEY * linear.key_dim() as u64
                    + KEPT_LINEAR_VALUE * linear.value_dim() as u64
                    + KEPT_LINEAR_HEAD * linear.num_value_heads as u64;
                (0, (linear.key_head_dim * linear.value_dim()) as u64, kept)
            }
        };
        Self {
            hidden,
            inner,
            key_value,
            state,
            kept: KEPT_HIDDEN * hidden + mixer + KEPT_INNER * inner,
        }
    }
}
