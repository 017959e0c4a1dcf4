//! The block-wise model interface that training on trees rests on.

use burn::tensor::{Int, Tensor};
use burn_tree_attn::TreeMask;

/// What every block of a forward pass shares.
#[derive(Clone, Debug)]
pub struct BlockContext {
    /// `[B, N]` depth on the path.
    pub position_ids: Tensor<2, Int>,
    /// Who sees whom.
    pub mask: TreeMask,
}

/// Keys and values of rows computed before (in an ancestor partition), of one block.
#[derive(Clone, Debug)]
pub struct BlockPast {
    /// `[B, Hkv, P, D]` keys after RoPE.
    pub key: Tensor<4>,
    /// `[B, Hkv, P, Dv]` values.
    pub value: Tensor<4>,
}

/// Routing of a mixture-of-experts block.
#[derive(Clone, Debug)]
pub struct RouterOutput {
    /// `[B * N, E]` softmax over all experts, in at least f32.
    pub probabilities: Tensor<2>,
    /// `[B * N, K]` chosen experts.
    pub experts: Tensor<2, Int>,
}

/// What a block leaves for descendants of its rows and for auxiliary losses.
#[derive(Clone, Debug, Default)]
pub struct BlockOutputs {
    /// `[B, Hkv, N, D]` keys after RoPE of attention blocks.
    pub key: Option<Tensor<4>>,
    /// `[B, Hkv, N, Dv]` values of attention blocks.
    pub value: Option<Tensor<4>>,
    /// Routing of mixture-of-experts blocks.
    pub router: Option<RouterOutput>,
}

/// A causal language model as a sequence of blocks.
///
/// Partitions, recomputation and all losses of this crate are written against this trait.
pub trait TreeModel {
    /// `[B, N]` token ids -> `[B, N, hidden]`.
    fn embed(&self, tokens: Tensor<2, Int>) -> Tensor<3>;
    /// Number of blocks.
    fn n_blocks(&self) -> usize;
    /// Runs block `index` on `x [B, N, hidden]`.
    fn block(
        &self,
        index: usize,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
    ) -> (Tensor<3>, BlockOutputs);
    /// The normalisation before the head.
    fn final_norm(&self, x: Tensor<3>) -> Tensor<3>;
    /// `[vocab, hidden]` weight of the language-model head.
    fn head_weight(&self) -> Tensor<2>;
}
