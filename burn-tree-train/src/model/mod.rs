//! The block-wise model interface.

mod block;
mod context;
mod parameters;

use burn::tensor::{Int, Tensor};

pub use block::{BlockError, BlockOutputs, BlockOutputsError, BlockPast, RouterOutput};
pub use context::{BlockContext, RecurrenceMismatch};
pub use parameters::frozen;
pub(crate) use parameters::{Trainable, trainable_without_gradient, what_is_trainable};

/// A causal language model as a sequence of blocks.
///
/// A step runs the blocks one by one, for activation checkpointing and for parts of trees. The
/// chapter *Add tree attention to your own model* of the book has an example.
pub trait TreeModel {
    /// `[B, N]` token ids -> `[B, N, hidden]`.
    fn embed(&self, tokens: Tensor<2, Int>, context: &BlockContext) -> Tensor<3>;
    /// Number of blocks.
    fn n_blocks(&self) -> usize;
    /// Runs block `index` on `x [B, N, hidden]`.
    ///
    /// `past` is the past context if the pack continues another one. An attention block, which uses
    /// the [mask](BlockContext::mask), must return its keys and values; a recurrent block, which
    /// uses the [recurrence](BlockContext::recurrence), its states.
    ///
    /// # Errors
    /// The error of the block, of any type, for example that of
    /// [`burn_tree_attn::try_tree_attention`].
    fn block(
        &self,
        index: usize,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
    ) -> Result<(Tensor<3>, BlockOutputs), BlockError>;
    /// The normalisation before the head.
    fn final_norm(&self, x: Tensor<3>) -> Tensor<3>;
    /// `[vocab, hidden]` weight of the language-model head.
    fn head_weight(&self) -> Tensor<2>;

    /// Number of token ids. Steps refuse token ids and targets that are not below it. The default
    /// is the number of rows of the head weight.
    fn vocabulary_size(&self) -> usize {
        self.head_weight().dims()[0]
    }

    /// Runs all blocks on `tokens [B, N]`. Returns the hidden states `[B, N, hidden]` for the head
    /// and the outputs of every block.
    ///
    /// # Errors
    /// The error of the first block that fails.
    fn forward(
        &self,
        tokens: Tensor<2, Int>,
        context: &BlockContext,
    ) -> Result<(Tensor<3>, Vec<BlockOutputs>), BlockError> {
        let mut x = self.embed(tokens, context);
        let mut outputs = Vec::with_capacity(self.n_blocks());
        for index in 0..self.n_blocks() {
            let (y, output) = self.block(index, x, context, None)?;
            x = y;
            outputs.push(output);
        }
        Ok((self.final_norm(x), outputs))
    }

    /// The hidden states of [`TreeModel::forward`] alone; keys and values are dropped block by
    /// block.
    ///
    /// # Errors
    /// As [`TreeModel::forward`].
    fn hidden_states(
        &self,
        tokens: Tensor<2, Int>,
        context: &BlockContext,
    ) -> Result<Tensor<3>, BlockError> {
        let mut x = self.embed(tokens, context);
        for index in 0..self.n_blocks() {
            x = self.block(index, x, context, None)?.0;
        }
        Ok(self.final_norm(x))
    }
}
