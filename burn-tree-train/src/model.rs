//! The block-wise model interface that training on trees rests on.

use std::sync::Arc;

use burn::tensor::{Int, Tensor};
use burn_tree_attn::TreeMask;
use tree_pack::TreeBatch;

/// What every block of a forward pass shares.
#[derive(Clone, Debug)]
pub struct BlockContext {
    /// `[B, N]` depth on the path.
    pub position_ids: Tensor<2, Int>,
    /// Who sees whom.
    pub mask: TreeMask,
    /// `[B * N]` the token ids on the host, 0 in padding: an embedding plans its gradient from them
    /// without waiting for the device.
    pub host_tokens: Arc<Vec<u32>>,
}

impl BlockContext {
    /// The context of a batch on its own, without rows computed before.
    pub fn new(batch: &TreeBatch) -> Self {
        let [_, rows] = batch.tokens.dims();
        Self {
            position_ids: batch.position_ids.clone(),
            mask: TreeMask::from_layouts(&batch.layouts, rows, &batch.tokens.device()),
            host_tokens: Arc::new(batch.host_tokens()),
        }
    }
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
/// Blocks are separate so that a step can be cut between them.
pub trait TreeModel {
    /// `[B, N]` token ids -> `[B, N, hidden]`.
    fn embed(&self, tokens: Tensor<2, Int>, context: &BlockContext) -> Tensor<3>;
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

    /// Runs all blocks on `tokens [B, N]`: the hidden states `[B, N, hidden]` that the head reads,
    /// and what every block left.
    fn forward(
        &self,
        tokens: Tensor<2, Int>,
        context: &BlockContext,
    ) -> (Tensor<3>, Vec<BlockOutputs>) {
        let mut x = self.embed(tokens, context);
        let mut outputs = Vec::with_capacity(self.n_blocks());
        for index in 0..self.n_blocks() {
            let (y, output) = self.block(index, x, context, None);
            x = y;
            outputs.push(output);
        }
        (self.final_norm(x), outputs)
    }

    /// The hidden states of [`TreeModel::forward`] alone; keys and values are dropped block by
    /// block.
    fn hidden_states(&self, tokens: Tensor<2, Int>, context: &BlockContext) -> Tensor<3> {
        let mut x = self.embed(tokens, context);
        for index in 0..self.n_blocks() {
            x = self.block(index, x, context, None).0;
        }
        self.final_norm(x)
    }
}
